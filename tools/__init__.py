"""Commands about tasks: check one of your own, play one, fetch data."""
