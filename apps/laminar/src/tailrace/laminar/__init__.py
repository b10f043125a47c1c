"""Laminar: trajectory-level asynchrony, relays for weights and repacking of the long tail, assembled
from Tailrace components.
"""
