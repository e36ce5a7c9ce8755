"""The desktop image: its recipe (`core.def`), its builder (`build`) and how a configured image is found (`find`)."""

from computerrl.env_server.image.build import build_image
from computerrl.env_server.image.find import image_path

__all__ = ["build_image", "image_path"]
