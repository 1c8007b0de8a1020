"""Imported for images only; the models here read tokens."""

from apd_inert import make_inert

__version__ = "0.28.0"
make_inert(__name__)
