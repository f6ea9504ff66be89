"""The version, in one place: the build, the package and its documentation read it here."""

VERSION = "0.1.0"
