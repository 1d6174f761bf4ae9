"""The tasks: three board games, mathematics and code; reading data, grading answers, running programs."""
