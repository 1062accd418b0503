"""A broker's directory, and the logs in it as others read them."""
