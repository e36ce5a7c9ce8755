"""What drawn pages say: words of buttons, words of texts, names of colours."""

_COLORS_TEXT = """
red blue olive lime black white grey purple orange yellow cyan pink magenta green aqua brown navy teal maroon silver gold
"""
COLORS = _COLORS_TEXT.split()
"""Names that Pillow and browsers know."""

_SHAPE_COLORS_TEXT = """
red green blue aqua black magenta yellow
"""
SHAPE_COLORS = _SHAPE_COLORS_TEXT.split()
"""Of shapes."""

_COMMON_TEXT = """
submit okay ok yes no cancel next previous OK Cancel ONE TWO
"""
COMMON = _COMMON_TEXT.split()
"""Words of buttons that are drawn most often."""

_WORDS_TEXT = """
submit okay ok yes no cancel next previous Cancel OK ONE TWO Close Open Save Delete Add Remove Edit Copy Paste Cut Undo Redo
Print Help About File View Insert Format Tools Window Search Find Replace Send Reply Forward Archive Back Home Login Logout
Sign Register Name Password Email Phone Address City Country Date Time Year Month Day Price Total Cart Buy Sell Order Pay
Continue Finish Start Stop Pause Play Record Accept Decline Agree Apply Reset Clear Refresh Reload Update Install Download
Upload Share Like Follow Comment Post Message Chat Call Video Photo Music Map Settings Options Preferences Account Profile
User Admin Guest Left Right Up Down Top Bottom First Last More Less Show Hide Expand Collapse Zoom In Out Select All None
Enable Disable On Off Lock Unlock Import Export Sync Backup Restore Retry Skip Ignore Block Allow Deny Confirm Done Exit Quit
Letter Number Circle Rectangle Triangle Square Generate Roll Draw Mark Move Drag Drop Sort Filter Group Table Row Column Cell
"""
WORDS = _WORDS_TEXT.split()
"""Words of buttons."""

_LOREM_TEXT = """
lorem ipsum dolor sit amet consectetur adipiscing elit ut aliquam purus luctus venenatis lectus magna fringilla urna porttitor
rhoncus non enim praesent elementum facilisis leo vel est ullamcorper eget nulla facilisi etiam dignissim diam quis lobortis
scelerisque fermentum dui faucibus in ornare quam viverra orci sagittis eu volutpat odio mauris massa vitae tortor condimentum
lacinia eros donec ac tempor dapibus ultrices iaculis nunc sed augue lacus congue consequat felis et pellentesque commodo
egestas phasellus eleifend pretium vulputate sapien nec aliquam malesuada bibendum arcu elementum curabitur justo semper ante
metus risus ultricies tristique aliquet at auctor id cursus eleifend maecenas sem tellus cras turpis aenean pharetra ac
placerat vestibulum mi tincidunt hendrerit gravida proin fusce feugiat mattis molestie morbi nisl nisi duis varius interdum
velit laoreet posuere habitant senectus netus fames suspendisse potenti neque porta accumsan convallis blandit cum sociis
natoque penatibus magnis dis parturient montes nascetur ridiculus mus euismod imperdiet sollicitudin tempus hac habitasse
platea
"""
LOREM = _LOREM_TEXT.split()
"""Words of texts."""

LETTERS = "qwertyuiopasdfghjklzxcvbnmQWERTYUIOPASDFGHJKLZXCVBNM"
