"""Conformance: does an implementation of a mechanism do what its privacy claim says?"""
