"""How `tiny-vision` was made: its tower learns from drawn pages what things are, then its language model says where they are.

python -m computerrl.learner.pretraining labels --steps 8000 --out labels.safetensors
python -m computerrl.learner.pretraining places --start labels.safetensors --name-steps 1500 --steps 1000 --out places.safetensors
python -m computerrl.learner.pretraining pack --start places.safetensors
"""
