"""Lists the words with which no English caption should end."""

# Articles, prepositions and forms of "to be". Self-critical training can teach a model to stop
# after one of these words. The list is that of the public self-critical code, with "and" added.
FUNCTION_WORDS = "a an the in for at of with before after on upon near to is are am and".split()
