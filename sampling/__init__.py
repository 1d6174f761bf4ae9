"""Requests and their scheduler, the engines that answer them, and the team of agents that asks."""
