"""Vision-language models: everything about an image that actors, engines and the learner must compute alike."""
