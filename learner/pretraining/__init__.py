"""How `tiny-vision` was made: from screens of our desktops and drawn pages its tower learns what things are, then its language
model says where they are.

python -m computerrl.learner.pretraining FOLDER

Three hours on two cores. Whoever is ended goes on from there when started again.
"""
