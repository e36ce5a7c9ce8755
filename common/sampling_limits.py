"""Limits of what actors and engines keep in memory. They obey these, and plans count them (`common.vision.screen_memory`)."""

STORED_PER_LIVE = 3
"""Stored rows of keys and values per live row: enough for the prompts of several steps of each episode's group."""

MAX_FEATURE_BYTES = 256 * 2**20
"""Maximum memory of an engine for features of images, beside those of requests under way."""

MAX_NUMBERED = 100_000
"""Maximum number of images whose numbers an engine remembers (about 20 MB); an image that is forgotten gets new numbers."""

MAX_PREPARED_BYTES = 128 * 2**20
"""Maximum memory for prepared images, beside those of requests under way. Rollouts of a group begin with the same screen; prompts
of an episode share screens."""

MAX_SENT = 32
"""Maximum number of encoded images that are kept for being shown in place of others; their own episodes may have ended."""

MAX_SERVED_BYTES = 256 * 2**20
"""Maximum memory of an engine process for encoded images, beside those that were sent last."""

NUM_PREPARING = 2
"""Threads of an engine process that prepare images, which takes 0.1 to 0.4 s for a full screen that is not kept."""
