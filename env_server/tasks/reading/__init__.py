"""Readers of files, texts and databases that an agent could have made: their cost is bounded by what is really read.

Nothing here trusts a size, a count or a range that a file claims. Passing a limit raises `limits.LimitPassed`.
"""
