VALUE = "the script's own"
