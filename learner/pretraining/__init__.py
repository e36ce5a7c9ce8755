"""How `tiny-vision` was made: its tower learns from drawn pages what things are, then its language model says where they are.

python -m computerrl.learner.pretraining labels --steps 6000 --out labels.safetensors
python -m computerrl.learner.pretraining places --start labels.safetensors --steps 2000 --out places.safetensors
python -m computerrl.learner.pretraining pack places.safetensors
"""
