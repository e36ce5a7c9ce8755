"""What a rootless, offline container can honour, and what it cannot: every reason to refuse a task, found when it is loaded.

The rule is "refuse by name, never fail later": a task that passes here has only steps, getters, metrics and programs that exist,
and all of its files. Commands are searched for programs that cannot work; a task that needs one in a way nobody can see from the
file is set up as well as it goes.
"""

from __future__ import annotations

import datetime
import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from computerrl.common.errors import TaskFailed
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.commands import Untranslatable, input_script, normalise
from computerrl.env_server.tasks.osworld.format import (
    AnyStep,
    Command,
    DownloadStep,
    ExecuteStep,
    Judge,
    LaunchStep,
    OpenTabsStep,
    SetupStep,
    Source,
    TaskFile,
    UploadStep,
    VerifiedStep,
)
from computerrl.env_server.tasks.osworld.getters import GETTERS
from computerrl.env_server.tasks.osworld.getters.values import is_shell, parse_date
from computerrl.env_server.tasks.osworld.metrics import METRICS, ON_DESKTOP, REFUSED
from computerrl.env_server.tasks.osworld.network.mirror import Mirror
from computerrl.env_server.tasks.osworld.network.sites import (
    PAGE_GETTERS,
    host_of,
    hosts_of,
    is_remote,
    judged_hosts,
    stand_ins_do,
)
from computerrl.env_server.tasks.osworld.network.wishes import missing_programs, network_wishes

Kind = Literal[
    "network",
    "account",
    "root",
    "gnome",
    "sound",
    "session",
    "app",
    "asset",
    "unsupported",
    "broken",
    "pays untouched",
    "fails",
    "solution",
]
KINDS: Mapping[Kind, str] = {
    "network": "needs the network while it runs",
    "account": "needs an account",
    "root": "needs root",
    "gnome": "needs GNOME's settings or shell",
    "sound": "needs a sound server",
    "session": "needs a system session (systemd)",
    "app": "needs an application that the desktop does not have",
    "asset": "needs a file that the asset folder lacks",
    "unsupported": "uses a step, getter, metric or automation that is not supported",
    "broken": "the file is broken",
    "pays untouched": "rewards doing nothing",
    "fails": "cannot be set up or judged on a desktop",
    "solution": "its own solution is not paid in full",
}
"""Every kind of reason and what it means; the last three only desktops show."""

DEFAULT_APPS = frozenset(
    {
        "calculator",
        "chrome",
        "editor",
        "files",
        "gimp",
        "image",
        "libreoffice_calc",
        "libreoffice_impress",
        "libreoffice_writer",
        "os",
        "pdf",
        "terminal",
        "thunderbird",
        "vlc",
    }
)
"""Applications that Debian has and that work in a container without root, by the format's names."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a task cannot be run."""

    kind: Kind
    where: str
    """The field of the task file."""
    reason: str
    sites: tuple[str, ...] = ()
    """Hosts of web sites whose copies in a mirror do for the network; empty: none do."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the desktops can do."""

    apps: frozenset[str] = DEFAULT_APPS
    has_tools: bool = False
    """Is their image `osworld`, or one like it, with the programs in `TOOLS`?"""


TOOLS_IMAGE = "osworld"
"""Image with `TOOLS` and `APPS_WITH_TOOLS`."""
APPS_WITH_TOOLS = frozenset({"vs_code"})
"""Applications that only the image `osworld` has."""
_WITHOUT_TOOLS = ("core", "full")


def abilities_of(image: str, *, apps: frozenset[str] | None = None) -> Abilities:
    """What desktops of ``image`` can do; ``apps``: applications in place of those that it has. What somebody else's image holds
    shows when a desktop runs a task."""
    has_tools = image not in _WITHOUT_TOOLS
    return Abilities(apps or DEFAULT_APPS | (APPS_WITH_TOOLS if has_tools else frozenset()), has_tools=has_tools)


def refusals(
    task: TaskFile, *, assets: Assets, abilities: Abilities | None = None, mirror: Mirror | None = None
) -> list[Refusal]:
    """Everything that keeps ``task`` from being run; empty when it can be."""
    found = _all_refusals(task, assets, abilities or Abilities())
    if "chrome" not in map(application, task.related_apps):  # the only program that shows web sites
        return found
    may_stand_in, mirror = stand_ins_do(task), mirror or Mirror()
    return [one for one in found if not (one.sites and (may_stand_in or all(map(mirror.has, one.sites))))]


def _all_refusals(task: TaskFile, assets: Assets, abilities: Abilities) -> list[Refusal]:
    """Those of a desktop that shows no web sites at all."""
    found = list(_of_task(task, abilities))
    for name, steps in (("config", task.config), ("evaluator.postconfig", task.evaluator.postconfig)):
        for index, step in enumerate(steps):
            found += step_refusals(step, f"{name}.{index} ({step.type})", assets, abilities)
    if not task.evaluator.infeasible:
        for judge in task.evaluator.judges():
            found += _of_judge(judge, assets, abilities)
            found += _of_pages(judge, hosts_of(task))
    return list(dict.fromkeys(found))


def _of_task(task: TaskFile, abilities: Abilities) -> Iterator[Refusal]:
    if task.proxy:
        yield Refusal("network", "proxy", "talks to web sites through a proxy", hosts_of(task))
    if task.fixed_ip:
        yield Refusal("network", "fixed_ip", "talks to web sites from a fixed address")
    for app in task.related_apps:
        if application(app) not in abilities.apps:
            yield Refusal("app", "related_apps", f"application {app}")
    if not task.evaluator.infeasible:  # what cannot be done anyway is refused by the agent, and not by us
        for wish in network_wishes(task.instruction):
            yield Refusal("network", "instruction", wish.reason, hosts_of(task) if wish.of_opened else wish.sites)
        for program in missing_programs(task.instruction):
            if not (abilities.has_tools and program in TOOLS):
                yield Refusal("app", "instruction", f"program {program}")
    for field in task.evaluator.unknown_fields:
        yield Refusal("unsupported", "evaluator", f"unknown field {field}")


_OTHER_NAMES: Mapping[str, str] = {
    "libreoffice": "libreoffice_writer", "office": "libreoffice_writer", "writer": "libreoffice_writer",
    "word": "libreoffice_writer", "calc": "libreoffice_calc", "excel": "libreoffice_calc", "impress": "libreoffice_impress",
    "powerpoint": "libreoffice_impress", "browser": "chrome", "google_chrome": "chrome", "chromium": "chrome",
    "web_browser": "chrome", "vscode": "vs_code", "code": "vs_code", "visual_studio_code": "vs_code", "mail": "thunderbird",
    "email": "thunderbird", "file_manager": "files", "nautilus": "files", "gedit": "editor", "text_editor": "editor",
    "ubuntu": "os", "gnome_terminal": "terminal", "vlc_media_player": "vlc", "pdf_viewer": "pdf", "image_viewer": "image",
}  # fmt: skip


def application(name: str) -> str:
    """The format's name of an application, however a file spells it: ``Writer``, ``LibreOffice Calc``, ``vs-code``."""
    plain = re.sub(r"[\s_-]+", "_", name.strip().lower())
    return _OTHER_NAMES.get(plain, _OTHER_NAMES.get(plain.removeprefix("libreoffice_"), plain))


# --- steps -----------------------------------------------------------------------------------------------------------

_NEVER: Mapping[str, tuple[Kind, str]] = {
    "login": ("account", "step login signs in to a web site"),
    "googledrive": ("account", "step googledrive needs an account there"),
    "proxy": ("network", "step proxy sets one up"),
    "change_wallpaper": ("gnome", "step change_wallpaper sets GNOME's background"),
    "tidy_desktop": ("unsupported", "step tidy_desktop has no published meaning"),
    "act": ("unsupported", "step act has no published meaning"),
    "replay": ("unsupported", "step replay has no published meaning"),
}


def step_refusals(step: SetupStep, where: str, assets: Assets, abilities: Abilities) -> Iterator[Refusal]:
    """Everything that keeps a step, which stands at ``where``, from being carried out."""
    parameters = step.parameters
    for field in getattr(parameters, "unknown_fields", ()):
        yield Refusal("unsupported", where, f"unknown field {field}")
    if step.type in _NEVER and not (abilities.has_tools and _NEVER[step.type][0] == "gnome"):
        yield Refusal(_NEVER[step.type][0], where, _NEVER[step.type][1])
    elif isinstance(parameters, DownloadStep):
        for file in parameters.files:
            yield from _of_asset(file.url, where, assets)
    elif isinstance(parameters, UploadStep):
        for upload in parameters.files:
            yield from _of_asset(upload.local_path, where, assets)
    elif isinstance(parameters, (LaunchStep, ExecuteStep, VerifiedStep)):
        yield from command_refusals(parameters.command, where, abilities, shell=parameters.shell)
    elif isinstance(parameters, OpenTabsStep):
        for url in parameters.urls_to_open:
            if is_remote(url):
                yield Refusal("network", where, f"opens {url}", (host_of(url),))
    elif isinstance(parameters, (dict, AnyStep)):
        yield Refusal("unsupported", where, f"unknown step {step.type}")


def _of_asset(url: str, where: str, assets: Assets) -> Iterator[Refusal]:
    reason = assets.missing(url)
    if reason:
        yield Refusal("asset", where, reason)


# --- commands --------------------------------------------------------------------------------------------------------

_IMPOSSIBLE: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("root", re.compile(r"\b(?:useradd|adduser|usermod|chpasswd|visudo)\b|\bsnap\b")),
    ("gnome", re.compile(r"\b(?:dconf|gnome-(?:shell|session|extensions|control-center|screensaver-command))\b")),
    ("sound", re.compile(r"\b(?:pacmd|amixer|alsamixer|wpctl)\b")),
    ("session", re.compile(r"\b(?:loginctl|hostnamectl|localectl|systemctl|journalctl)\b")),
    ("network", re.compile(r"\b(?:wget|speedtest(?:-cli)?)\b|\bcurl\b(?!.*(?:localhost|127\.0\.0\.1))")),
    ("network", re.compile(r"\bpip3? +install +(?![./~])|\bgit +(?:clone|pull|push|fetch)\b")),
    # The image has no pip, not even for a file that is there.
    ("unsupported", re.compile(r"\bpip3? +install +[./~]")),
)
_IMPOSSIBLE_WITHOUT_TOOLS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("root", re.compile(r"\bsudo\b|\{CLIENT_PASSWORD\}|\bsu -")),
    ("root", re.compile(r"\bapt(?:-get)? +install")),
    ("gnome", re.compile(r"\bgsettings\b")),
    ("session", re.compile(r"\btimedatectl\b")),
    ("sound", re.compile(r"\b(?:pactl|pulseaudio)\b")),
)
_INSTALLED = re.compile(r"\bapt(?:-get)? +install((?: +[\w+.-]+)+)")
"""Names and options after it."""
_PROGRAMS: Mapping[str, str] = {
    "code": "vs_code", "google-chrome": "chrome", "google-chrome-stable": "chrome", "chromium": "chrome",
    "chromium-browser": "chrome",
    "firefox": "firefox", "vlc": "vlc", "cvlc": "vlc", "gimp": "gimp", "gimp-2.10": "gimp", "thunderbird": "thunderbird",
    "nautilus": "files", "thunar": "files", "gedit": "editor", "mousepad": "editor", "gnome-terminal": "terminal",
    "xterm": "terminal",
    "libreoffice": "libreoffice_writer", "soffice": "libreoffice_writer", "localc": "libreoffice_calc",
    "lowriter": "libreoffice_writer",
    "loimpress": "libreoffice_impress", "evince": "pdf", "eog": "image viewer", "shotwell": "shotwell", "steam": "steam",
    "gnome-calculator": "calculator", "zoom": "zoom", "docker": "docker", "obsidian": "obsidian", "totem": "totem",
    "rhythmbox": "rhythmbox",
}  # fmt: skip
"""Program -> application, for those that a desktop may lack."""
TOOLS = frozenset({"bc", "gio", "git", "jq", "node", "sysstat", "unzip", "xsel", "xz", "zip"})
"""Programs, by the names of commands or of packages, that the image `osworld` has and the others lack. It also has a `sudo`,
an `apt` that knows what is installed, `gsettings`, `timedatectl` and a sound server without a device."""
ABSENT_PROGRAMS = frozenset({"7z", "xclip", "wmctrl", "convert", "ffmpeg", "vim", "nano", "docker", "npm", "conda"})
"""Programs that no image has: without them a set-up does nothing, and an evaluator sees no solution."""
_UNPACKS_XZ = re.compile(r"\btar\b.*(?:\s-?[a-zA-Z]*J[a-zA-Z]*\s|--xz\b|\.t?xz\b)")
_IGNORED = frozenset({"socat"})
"""Programs that only carry the browser's debugging port between machines: not needed, the guest talks to its browser itself."""


def is_ignored(command: Command) -> bool:
    """A command that is left out: see `_IGNORED`."""
    return _words(command)[:1] != [] and os.path.basename(_words(command)[0]) in _IGNORED


def _words(command: Command) -> list[str]:
    return command.split() if isinstance(command, str) else list(command)


def command_refusals(command: Command, where: str, abilities: Abilities, *, shell: bool) -> Iterator[Refusal]:
    """Everything that keeps a command, which stands at ``where``, from being run, as far as its words show."""
    text = command if isinstance(command, str) else " ".join(command)
    impossible = _IMPOSSIBLE if abilities.has_tools else (*_IMPOSSIBLE, *_IMPOSSIBLE_WITHOUT_TOOLS)
    for kind, pattern in impossible:
        match = pattern.search(text)
        if match is not None:
            yield Refusal(kind, where, f"command uses {match.group().strip()}")
    try:
        input_script(normalise(command, shell=shell), (1920, 1080))
    except Untranslatable as error:
        yield Refusal("unsupported", where, str(error))
    for program in (*programs(command), *(["xz"] if _UNPACKS_XZ.search(text) else [])):
        if program in ABSENT_PROGRAMS or (program in TOOLS and not abilities.has_tools):
            yield Refusal("app", where, f"program {program}")
        app = _PROGRAMS.get(program)
        if app is not None and app not in abilities.apps:
            yield Refusal("app", where, f"program {program} (application {app})")

    if abilities.has_tools:
        for names in _INSTALLED.findall(text):
            for name in names.split():
                if name not in TOOLS and not name.startswith("-"):
                    yield Refusal("network", where, f"installs {name}")


def programs(command: Command) -> list[str]:
    """The programs that a command line starts, as far as its words show."""
    if not isinstance(command, str):
        if len(command) > 2 and os.path.basename(command[0]) in ("bash", "sh") and command[1] == "-c":
            return programs(command[2])
        return [os.path.basename(command[0])] if command else []
    found = []
    for part in re.split(r"[;&|\n()`]|\$\(", command):
        words = [word for word in part.split() if "=" not in word.split("/")[0]]
        if words:
            found.append(os.path.basename(words[0].strip("\"'")))
    return found


# --- evaluators ------------------------------------------------------------------------------------------------------

_OFFLINE_GETTERS: Mapping[str, tuple[Kind, str]] = {
    "googledrive_file": ("account", "getter googledrive_file needs an account there"),
    "info_from_website": ("network", "getter info_from_website reads a web site"),
    "pdf_from_url": ("network", "getter pdf_from_url loads a web page"),
    "gotoRecreationPage_and_get_html_content": ("network", "getter gotoRecreationPage_and_get_html_content reads a web site"),
    "active_tab_html_parse": ("network", "getter active_tab_html_parse reads a page of a web site"),
    "macys_product_url_parse": ("network", "getter macys_product_url_parse reads a web site"),
    "number_of_search_results": ("network", "getter number_of_search_results reads a web site"),
    "conference_city_in_order": ("network", "getter conference_city_in_order reads a web site"),
    "time_diff_range": ("network", "getter time_diff_range compares to a web site"),
    "url_path_parse": ("network", "getter url_path_parse reads what a shop makes of an address"),
    "replay": ("unsupported", "getter replay has no published meaning"),
}
_UNTOLD = re.compile(r"\b(?:(attr|docattr|txt|val|act)[|:]|(application)\b)")
"""Parts of rules over the accessibility tree that our trees (`env_server.guest.osworld.tree_xml`) have not: see
`TREE_NAMESPACES`."""
_METRIC_NEEDS: Mapping[str, tuple[Kind, str]] = {
    "is_added_to_steam_cart": ("network", "metric is_added_to_steam_cart reads a web site"),
    **{name: ("unsupported", reason) for name, (_, reason) in REFUSED.items()},
}


def _of_judge(judge: Judge, assets: Assets, abilities: Abilities) -> Iterator[Refusal]:
    where = f"evaluator.func ({judge.func})"
    if judge.func in _METRIC_NEEDS:
        yield Refusal(_METRIC_NEEDS[judge.func][0], where, _METRIC_NEEDS[judge.func][1])
    elif judge.func not in METRICS and judge.func not in ON_DESKTOP:
        yield Refusal("unsupported", where, f"unknown metric {judge.func}")
    expected = judge.expected if isinstance(judge.expected, list) else [judge.expected]
    for name, source in (("result", judge.result), *(("expected", source) for source in expected)):
        if source is not None:
            yield from _of_source(source, f"evaluator.{name} ({source.type})", assets, abilities)
    if judge.result is None:
        yield Refusal("broken", "evaluator.result", f"metric {judge.func} has nothing to judge")
    elif judge.func == "check_accessibility_tree" and (untold := _UNTOLD.search(str([source for source in expected if source]))):
        yield Refusal("unsupported", "evaluator.expected", f"the desktop's tree has no {untold[1] or untold[2]}")


def _of_pages(judge: Judge, hosts: tuple[str, ...]) -> Iterator[Refusal]:
    """What keeps the pages that a judge looks at from being open; ``hosts``: those of the task."""
    expected = judge.expected if isinstance(judge.expected, list) else [judge.expected]
    if judge.result is None or judge.result.type not in PAGE_GETTERS:
        return
    if any(_remote_rules(source) for source in expected if source is not None):
        sites = tuple(judged_hosts(judge)) or hosts
        yield Refusal("network", "evaluator.expected", "the page that must be in front is on a web site", sites)
    if hosts and any(source.type == "rule_relativeTime" for source in expected if source is not None):
        yield Refusal("network", "evaluator.expected", "the page that must be in front depends on the day")


def _remote_rules(source: Source) -> bool:
    rules = source.args.get("rules")
    return re.search(r"https?:\\?/\\?/(?!localhost|127\.)|\bwww\b|\.(?:com|org|net|edu|gov)\b", str(rules)) is not None


def _of_source(source: Source, where: str, assets: Assets, abilities: Abilities) -> Iterator[Refusal]:
    if source.type in _OFFLINE_GETTERS:
        yield Refusal(_OFFLINE_GETTERS[source.type][0], where, _OFFLINE_GETTERS[source.type][1])
        return
    getter = GETTERS.get(source.type)
    if getter is None:
        yield Refusal("unsupported", where, f"unknown getter {source.type}")
        return
    if source.type == "vm_wallpaper" and not abilities.has_tools:
        yield Refusal("gnome", where, "getter vm_wallpaper reads GNOME's background")
    missing = [name for name in getter.needs if name not in source.args]
    if missing:
        yield Refusal("broken", where, f"lacks {', '.join(missing)}")
        return
    if source.type == "cloud_file":
        for url in listed(source.args["path"]):
            yield from _of_asset(str(url), where, assets)
    if source.type == "enabled_experiments":
        yield Refusal("unsupported", where, "the flags of chrome://flags that files name are gone from today's Chromium")
    if source.type == "rule_relativeTime":
        yield from _of_dates(source, where)
    if source.type in ("vm_command_line", "vm_command_error"):
        yield from command_refusals(source.args["command"], where, abilities, shell=is_shell(source.args))
        wanted = re.match(r"\s*which\s+(\S+)", " ".join(_words(source.args["command"])))
        if wanted is not None:
            yield Refusal("network", where, f"the agent would have to install {wanted[1]}")
    if getter.app and getter.app not in abilities.apps:
        yield Refusal("app", where, f"getter {source.type} (application {getter.app})")


def _of_dates(source: Source, where: str) -> Iterator[Refusal]:
    for text in source.args["rules"].get("relativeTime", {}).values():
        try:
            parse_date(str(text), datetime.date(2024, 2, 1))
        except TaskFailed as error:
            yield Refusal("unsupported", where, str(error))


def listed(value: Any) -> list[Any]:
    """A field that holds one entry or a list of them, as a list."""
    return value if isinstance(value, list) else [value]
