"""Applications without an API of their own: the mail program and the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .on_demand import OnDemandApp

_MAIL_SETTINGS = {
    "mail.provider.suppress_dialog_on_startup": "true", "mail.spotlight.firstRunDone": "true",
    "mail.shell.checkDefaultClient": "false", "mail.rights.version": "1", "mailnews.start_page.enabled": "false",
    "mailnews.start_page_override.mstone": '"ignore"', "app.update.enabled": "false", "app.donation.eoy.version.viewed": "999",
    "datareporting.policy.dataSubmissionEnabled": "false", "datareporting.policy.dataSubmissionPolicyBypassNotification": "true",
    "toolkit.telemetry.enabled": "false", "extensions.update.enabled": "false", "toolkit.cosmeticAnimations.enabled": "false",
    "ui.caretBlinkTime": "0", "ui.prefersReducedMotion": "1", "accessibility.force_disabled": "-1",
    "browser.cache.disk.enable": "false", "mailnews.database.global.indexer.enabled": "false",
}  # fmt: skip


class Thunderbird(OnDemandApp):
    """The mail program."""

    name = "thunderbird"
    label = "Thunderbird"
    program_file = "/usr/lib/thunderbird/thunderbird"

    def arguments(self) -> Sequence[str]:
        """A profile of its own."""
        return ["--profile", str(self.profile / "profile"), "--no-remote"]

    def settings(self) -> Mapping[str, str]:
        """No questions, no network, no blinking."""
        lines = [f'user_pref("{name}", {value});' for name, value in _MAIL_SETTINGS.items()]
        return {"profile/user.js": "\n".join([*lines, ""])}


class Terminal(OnDemandApp):
    """A terminal with a shell in the agent's folder."""

    name = "terminal"
    label = "the terminal"
    program_file = "xfce4-terminal"

    def arguments(self) -> Sequence[str]:
        """The agent's folder is the shell's home; nothing of the host's name or the user's is shown."""
        home = str(self.around.folder.root)
        shell = ["env", f"HOME={home}", "HISTFILE=/dev/null", "PS1=\\w\\$ ", "TERM=xterm-256color", "bash", "--norc", "-i"]
        return ["--disable-server", f"--working-directory={home}", "--title=Terminal", "-x", *shell]

    def settings(self) -> Mapping[str, str]:
        """No blinking, no questions."""
        lines = (
            "MiscCursorBlinks=FALSE", "MiscShowUnsafePasteDialog=FALSE", "MiscConfirmClose=FALSE", "MiscMenubarDefault=FALSE",
            "ScrollingBar=TERMINAL_SCROLLBAR_NONE", "TitleMode=TERMINAL_TITLE_HIDE",
        )  # fmt: skip
        return {".config/xfce4/terminal/terminalrc": "\n".join(["[Configuration]", *lines, ""])}
