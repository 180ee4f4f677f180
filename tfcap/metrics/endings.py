"""Words with which no English caption should end."""

# Articles, prepositions and forms of "to be": sentences that self-critical training has taught to
# break off end in these. The list of the public self-critical code, and "and".
FUNCTION_WORDS = "a an the in for at of with before after on upon near to is are am and".split()
