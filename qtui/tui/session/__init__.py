"""Where the user was: kept when the app ends, taken up again when it begins."""
