"""The catalogue of `test_messes`: what an agent and its programs can leave behind, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from computerrl.env_server.driver import SetupStep

SHEET = SetupStep("calc_open", {"cells": {"A1": "apple", "C2": "12"}, "active_cell": "A1"})
PAGE = SetupStep("web_page", {"page": "click-button", "seed": 7})
EDITOR = SetupStep("editor_open", {"path": "note.txt", "text": "first line\n"})
FILES = SetupStep("files_open", {"folder": "."})
_SECOND_FILE = SetupStep("write_file", {"path": "a.txt", "text": "x"})
_PICTURE = SetupStep("write_file", {"path": "a.ppm", "text": "P3 2 2 255 " + "9 " * 12})

HOME, OWN = "/home/user", "/tmp/agent"
"""The user's, and the desktop's own folder."""


def app(name: str) -> SetupStep:
    """An application as an agent opens it."""
    return SetupStep("open_app", {"app": name})


def plant(folder: str, name: str = "planted") -> str:
    """A file in a folder that may not be there."""
    return f"mkdir -p {folder} && echo x > {folder}/{name}"


def python(*lines: str) -> str:
    """A Python program."""
    return "\n".join(["python3 - <<'END'", *lines, "END"])


def background(command: str) -> str:
    """It goes on when its shell has ended, in a session of its own."""
    return f"(setsid {command} >/dev/null 2>&1 &); sleep 0.5"


def with_x(*lines: str) -> str:
    """A program that speaks to the X server."""
    return python(
        "from Xlib import X, Xatom",
        "from Xlib.display import Display",
        "from Xlib.ext import xtest",
        "from Xlib.protocol import event",
        "d = Display()",
        "r = d.screen().root",
        *lines,
        "d.sync()",
    )


def with_windows(message: str, number: int, *states: str) -> str:
    """A program that asks the window manager for something about every window."""
    return with_x(
        "windows = r.get_full_property(d.get_atom('_NET_CLIENT_LIST'), Xatom.WINDOW).value",
        f"data = [{number}, *map(d.get_atom, {list(states)})]",
        f"kind, data = d.get_atom({message!r}), (32, (data + [0] * 5)[:5])",
        "sent = [event.ClientMessage(window=window, client_type=kind, data=data) for window in windows]",
        "[r.send_event(one, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask) for one in sent]",
        "d.sync()",
        "import time",
        "time.sleep(0.5)",
    )


def with_keyboard(call: str) -> str:
    """A call of the keyboard extension's own library."""
    return python(
        "import ctypes",
        "x = ctypes.CDLL('libX11.so.6')",
        "x.XOpenDisplay.restype = ctypes.c_void_p",
        "d = ctypes.c_void_p(x.XOpenDisplay(None))",
        f"x.{call}",
        "x.XSync(d, 0)",
    )


def _of_process(name: str, call: str) -> str:
    """A call about the oldest process of this name."""
    return python("import os, resource, subprocess", f"pid = int(subprocess.check_output(['pgrep', '-o', '{name}']))", call)


def with_extensions(*lines: str) -> str:
    """A program that calls the libraries of the extensions for input devices (`xi`) and screens (`xr`)."""
    return with_x(
        "import ctypes",
        "xl, xi, xr = (ctypes.CDLL(name) for name in ('libX11.so.6', 'libXi.so.6', 'libXrandr.so.2'))",
        "xl.XOpenDisplay.restype = xi.XOpenDevice.restype = ctypes.c_void_p",
        "c, number = ctypes.c_void_p(xl.XOpenDisplay(None)), ctypes.c_ulong",
        "device = lambda number_: ctypes.c_void_p(xi.XOpenDevice(c, number(number_)))",
        "screen = r.xrandr_get_screen_resources()",
        "output, crtc, window = screen.outputs[0], screen.crtcs[0], number(r.id)",
        *lines,
        "xl.XSync(c, 0)",
    )


_LISTEN = "python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 8000)); time.sleep(999)'"
_OWNER = (
    "from Xlib.display import Display; d = Display(); w = d.screen().root.create_window(0, 0, 1, 1, 0, 0);"
    ' w.set_selection_owner(d.get_atom("CLIPBOARD"), 0); d.sync(); d.next_event()'
)
_SERVICE = "[D-BUS Service]\\nName=org.evil\\nExec=/bin/sleep 999\\n"
_AIDS = "--dest=org.a11y.Bus /org/a11y/bus org.freedesktop.DBus.Properties.Set string:org.a11y.Status"

COMMANDS: Mapping[str, str] = {
    "file in /tmp": plant("/tmp"),
    "file in /var/tmp": plant("/var/tmp/.a"),
    "file in shared memory": plant("/dev/shm"),
    "file of another user's name": plant("/tmp/agent2"),
    "settings of GTK": f"echo '* {{ color: red; }}' > {HOME}/.config/gtk-3.0/gtk.css",
    "bookmarks": plant(f"{HOME}/.config/gtk-3.0", "bookmarks"),
    "default applications": plant(f"{HOME}/.config", "mimeapps.list"),
    "folders of the user": plant(f"{HOME}/.config", "user-dirs.dirs"),
    "fonts": plant(f"{HOME}/.local/share/fonts"),
    "recent files": plant(f"{HOME}/.local/share", "recently-used.xbel"),
    "trash": plant(f"{HOME}/.local/share/Trash/files"),
    "thumbnails": plant(f"{HOME}/.cache/thumbnails/normal"),
    "printers": plant(f"{HOME}/.cups", "lpoptions"),
    "program at log-in": plant(f"{HOME}/.config/autostart", "a.desktop"),
    "timer": plant(f"{HOME}/.config/systemd/user", "a.timer"),
    "rc of the shell": f"echo 'alias ls=false' >> {HOME}/.bashrc; {plant(HOME, '.profile')}",
    "dconf": plant(f"{HOME}/.config/dconf", "user"),
    "service for the bus": f"mkdir -p {HOME}/.local/share/dbus-1/services && printf '{_SERVICE}' >"
    f" {HOME}/.local/share/dbus-1/services/org.evil.service; dbus-send --session --dest=org.evil / org.evil.x || true",
    "environment of services": "dbus-send --session --print-reply --dest=org.freedesktop.DBus /org/freedesktop/DBus"
    " org.freedesktop.DBus.UpdateActivationEnvironment dict:string:string:LD_PRELOAD,/tmp/evil.so 2>&1 | grep AccessDenied",
    "macro of the office": plant(f"{HOME}/.config/libreoffice/4/user/basic"),
    "options of the office, by hand": "sed -i 's/<value>true/<value>false/' "
    f"{HOME}/.config/libreoffice/4/user/registrymodifications.xcu",
    "profile of the web tasks' browser": f"{plant(f'{OWN}/chromium/Default')}; {plant(f'{OWN}/chromium')}",
    "settings of the editor, by hand": f"sed -i 's/word-wrap=true/word-wrap=false/' {HOME}/.config/glib-2.0/settings/keyfile",
    "actions of the file manager": f"echo '<actions/>' > {HOME}/.config/Thunar/uca.xml",
    "settings of the file manager": "xfconf-query -c thunar -p /last-show-hidden -n -t bool -s true",
    "settings service ended": "pkill -KILL xfconfd; sleep 0.3",
    "settings service started by the agent": "pkill -KILL xfconfd; xfconf-query -c xsettings -lv; sleep 0.3",
    "settings service stopped": "pkill -STOP xfconfd",
    "settings service of other limits": _of_process("xfconfd", "resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))"),
    "settings of the desktop": "xfconf-query -c xsettings -p /Net/ThemeName -n -t string -s planted",
    "log beside the logs": plant(f"{OWN}/logs", "planted.log"),
    "file among sockets": plant(f"{OWN}/run/evil"),
    "closed folders": f"chmod 500 {OWN}/run {OWN} {HOME}/.config/glib-2.0/settings {HOME}/.config {HOME}",
    "folders of sockets opened and closed": f"chmod 711 {OWN}/run; chmod 500 /tmp/.X11-unix",
    "link in place of a folder": f"mv {HOME}/.config/gtk-3.0 {HOME}/planted && ln -s {HOME}/planted {HOME}/.config/gtk-3.0",
    "link to a program": "ln -s /usr/bin/python3 /tmp/planted",
    "deep folders": python("import os", "os.chdir('/tmp')", *["os.mkdir('d' * 200); os.chdir('d' * 200)"] * 60),
    "background process": background("sh -c 'while :; do date >> /tmp/planted; sleep 0.2; done'"),
    "process under another name": f"cp /bin/sleep /tmp/chromium; {background('/tmp/chromium 999')}",
    "open port": background(_LISTEN),
    "name on the bus": background("dbus-monitor --session"),
    "screen reader": f"dbus-send --session --print-reply {_AIDS} string:ScreenReaderEnabled variant:boolean:true",
    "property of the screen": "xprop -root -f EVIL 8s -set EVIL planted",
    "property of the screen, by the window manager's name": "xprop -root -f _NET_EVIL 8s -set _NET_EVIL planted",
    "property of the window manager's window": with_x(
        "owner = r.get_full_property(d.get_atom('_NET_SUPPORTING_WM_CHECK'), X.AnyPropertyType).value[0]",
        "window = d.create_resource_object('window', owner)",
        "window.change_property(d.get_atom('EVIL'), Xatom.STRING, 8, b'planted')",
        "window.change_property(d.get_atom('_NET_WM_NAME'), Xatom.STRING, 8, b'planted')",
    ),
    "address of the accessibility bus": "xprop -root -f AT_SPI_BUS 8s -set AT_SPI_BUS unix:path=/tmp/evil",
    "resources of X": "xprop -root -f RESOURCE_MANAGER 8s -set RESOURCE_MANAGER planted",
    "held keys": with_x("[xtest.fake_input(d, X.KeyPress, code) for code in (50, 37, 64, 38)]"),
    "held button": with_x("xtest.fake_input(d, X.ButtonPress, 1)"),
    "buttons the other way round": with_x("d.set_pointer_mapping([3, 2, 1, *d.get_pointer_mapping()[3:]])"),
    "window that outlives its program": with_x(
        "d.set_close_down_mode(X.RetainPermanent)",
        "r.create_window(0, 0, 300, 300, 0, X.CopyFromParent, override_redirect=1).map()",
    ),
    "selection of a program": background(f"python3 -c '{_OWNER}'"),
    "locked modifiers and layout": with_keyboard("XkbLockModifiers(d, 0x100, 0x4D, 0x4D); x.XkbLockGroup(d, 0x100, 1)"),
    "settings of the window manager": f"{plant(f'{HOME}/.config/openbox', 'rc.xml')}; pkill -USR2 openbox; sleep 0.3",
    "windows not as wide as the screen": with_windows("_NET_WM_STATE", 0, "_NET_WM_STATE_MAXIMIZED_HORZ"),
    "windows in full screen": with_windows("_NET_WM_STATE", 1, "_NET_WM_STATE_FULLSCREEN"),
    "windows as icons": with_windows("WM_CHANGE_STATE", 3),
    "applications ended": "pkill -KILL thunar; pkill -KILL mousepad; pkill -KILL chromium; pkill -KILL soffice.bin",
}
"""Mess -> what a program of the agent's does."""

ACTIONS: Mapping[str, tuple[Sequence[SetupStep], Sequence[str]]] = {
    "caps lock": ([EDITOR], ['key("capslock")']),
    "key held down": ([EDITOR], ['key_down("shift")']),
    "clipboard of the editor": ([EDITOR], ['key("ctrl+a")', 'key("ctrl+c")']),
    "clipboard of Calc": ([SHEET], ['key("ctrl+c")']),
    "undo and unsaved text": ([EDITOR], ['type("secret")', 'key("ctrl+z")']),
    "searched text of the editor": ([EDITOR], ['key("ctrl+f")', 'type("secret", enter=True)']),
    "editor with line numbers": ([EDITOR], ['key("alt+v")', 'click("Line Numbers")']),
    "editor in full screen": ([EDITOR], ['key("f11")']),
    "Calc in full screen": ([SHEET], ['key("ctrl+shift+j")', "wait()"]),
    "hidden files shown": ([FILES], ['key("ctrl+h")']),
    "file in the trash": ([FILES, _SECOND_FILE], ['key("ctrl+a")', 'key("delete")']),
    "dialog of Calc on another page": ([SHEET], ['key("ctrl+1")', 'key("ctrl+pagedown")', 'key("enter")']),
    "search in Calc": ([SHEET], ['key("ctrl+h")', 'type("secret", enter=True)']),
    "sheet saved elsewhere": ([SHEET], ['key("ctrl+shift+s")', 'type("/tmp/planted.ods", enter=True)', "wait()"]),
    "option of the office": ([app("impress")], ["impress.configure_auto_save(True, 7)"]),
    "word in the dictionary": ([app("writer")], ['type("sekret", enter=True)', 'key("f7")', "wait()"]),
    "text of Writer": ([app("writer")], ['type("secret", enter=True)']),
    "slides": ([app("impress")], ['type("secret")']),
    "free browser": ([app("browser")], ["chrome.bookmark_page()", "chrome.open_privacy_settings()"]),
    "image editor": ([_PICTURE, app("gimp")], ['gimp.open("a.ppm")', 'gimp.fill("red")', 'gimp.export("b.png")']),
    "media player": ([app("vlc")], ['vlc.set_settings("qt-max-volume", 200)']),
    "mail program": ([app("thunderbird")], ["wait()"]),
    "shell": ([app("terminal")], ['type("echo x > /tmp/planted; cd /; export A=1", enter=True)', "wait()"]),
    "shell's background process": ([app("terminal")], ['type("nohup sleep 999 & disown; exit", enter=True)', "wait()"]),
}
"""Mess -> set-up steps and what an agent does then."""

RED = "* { background-color: red; background-image: none; }"

REMEMBERED: Mapping[str, tuple[Sequence[SetupStep], Sequence[str], Sequence[SetupStep], Sequence[str], str]] = {
    "text that was copied from the editor": (
        [EDITOR],
        ['key("ctrl+a")', 'key("ctrl+c")'],
        [SetupStep("editor_open", {"path": "other.txt", "text": "zz\n"})],
        ['key("alt+e")', 'click("Paste Special")', 'click("Paste from History")'],
        "No clipboard data",
    ),
    "what the file manager can undo": (
        [FILES],
        ['key("ctrl+shift+n")', "wait()", 'type("made", enter=True)', "wait()"],
        [FILES, _SECOND_FILE],
        ['key("ctrl+z")', "wait()"],
        "There is no operation to undo",
    ),
}
"""Mess that no file and no setting shows -> set-up steps, what an agent does, the next task, where it would look, and what it
sees there when there is nothing."""

RESTYLED: Mapping[str, SetupStep] = {"editor": EDITOR, "files": FILES, "calc": SHEET}
"""Application that an agent quits and opens again -> the step that opens it. In between, all of its windows get a colour."""

COSTS_A_DESKTOP: Mapping[str, str] = {
    "attributes of the screen's window": with_x("r.change_attributes(do_not_propagate_mask=X.KeyPressMask)"),
    "lights of the keyboard": with_x("d.change_keyboard_control(led=3, led_mode=X.LedModeOn)"),
    "keyboard layout": "setxkbmap de",
    "sticky keys": with_keyboard("XkbChangeEnabledControls(d, 0x100, 8, 8)"),
    "repeat rate": with_keyboard("XkbSetAutoRepeatRate(d, 0x100, 90, 9)"),
    "pointer turned round": with_x(
        "a, f = d.get_atom('Coordinate Transformation Matrix'), d.get_atom('FLOAT')",
        "one, less = 0x3F800000, 0xBF800000",
        "d.xinput_change_device_property(4, a, f, 0, (32, [less, 0, one, 0, one, 0, 0, 0, one]))",
    ),
    "buttons of one pointer": with_extensions("xi.XSetDeviceButtonMapping(c, device(4), bytes([3, 2, 1, *range(4, 11)]), 10)"),
    "buttons of the other pointer": with_extensions("xi.XSetDeviceButtonMapping(c, device(6), bytes([3, 2, 1]), 3)"),
    "property of an output": with_x(
        "output, name = r.xrandr_get_screen_resources().outputs[0], d.get_atom('planted')",
        "d.xrandr_change_output_property(output, name, Xatom.STRING, 0, (8, b'planted'))",
    ),
    "gamma": with_x(
        "crtc = r.xrandr_get_screen_resources().crtcs[0]",
        "size = d.xrandr_get_crtc_gamma_size(crtc).size",
        "d.xrandr_set_crtc_gamma(crtc, size, *[[7] * size] * 3)",
    ),
    "millimetres of the screen": with_extensions("xr.XRRSetScreenSize(c, window, 800, 600, 50, 40)"),
    "primary output": with_extensions("xr.XRRSetOutputPrimary(c, window, number(output))"),
    "names of the keyboard": 'xkbcomp -xkb $DISPLAY - 2> /dev/null | sed \'s/xkb_symbols "[^"]*"/xkb_symbols "planted"/\''
    " | xkbcomp - $DISPLAY 2> /dev/null",
    "more desktops": with_x(
        "m = event.ClientMessage(window=r, client_type=d.get_atom('_NET_NUMBER_OF_DESKTOPS'), data=(32, [4, 0, 0, 0, 0]))",
        "r.send_event(m, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)",
    )
    + "\nsleep 0.3",
    "limits of the X server": _of_process("Xvfb", "resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))"),
    "niceness of the window manager": _of_process("openbox", "os.setpriority(os.PRIO_PROCESS, pid, 19)"),
    "niceness of the first process": python("import os", "os.setpriority(os.PRIO_PROCESS, 1, 19)"),
    "limits of the first process": python("import resource", "resource.prlimit(1, resource.RLIMIT_NOFILE, (10, 10))"),
    "processors of the guest": _of_process("python3", "os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))"),
    "accessibility service stopped": "pkill -STOP at-spi2-regis",
    "socket of the bus gone": f"rm {OWN}/run/bus",
    "socket of the X server closed": "chmod 000 /tmp/.X11-unix/*",
    "own folder elsewhere": f"mv {OWN} /tmp/planted",
    "accessibility service ended": "pkill -KILL at-spi2-regis; sleep 0.3",
    "window manager ended": "pkill -KILL openbox; sleep 0.3",
}
"""Mess that no reset takes back -> what a program of the agent's does."""
