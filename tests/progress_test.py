"""Messages of the library are printed by the commands alone, and worker processes do the same."""

import logging

from tfcap import progress


def test_messages_have_a_level_and_two_streams(capsys):
    logger = logging.getLogger("tfcap")
    progress.show_messages(str.upper, logging.WARNING)
    try:
        assert progress.shown_level() == logging.WARNING
        logger.info("a note")
        logger.warning("a warning")
        assert capsys.readouterr() == ("", "A WARNING\n")
        logger.handlers = [logging.NullHandler()]  # a program has a way of its own
        assert progress.shown_level() is None
        logger.warning("nothing")
        assert capsys.readouterr() == ("", "")
    finally:
        progress.show_messages()
    logger.info("a note")
    assert capsys.readouterr() == ("a note\n", "")
