"""Measurements of networks and steps."""
