"""All kinds of blocks, by their key in a tool's table."""

from collections.abc import Mapping
from types import MappingProxyType

from doubtless.core.contract import Kind
from doubtless.engine.contracts.block import BlockTable
from doubtless.engine.contracts.block_browser import BrowserTable
from doubtless.engine.contracts.block_file import FileTable
from doubtless.engine.contracts.block_git import GitPushTable
from doubtless.engine.contracts.block_mail import MailTable
from doubtless.engine.contracts.block_mcp import McpTable
from doubtless.engine.contracts.block_shell import ShellTable
from doubtless.engine.contracts.block_ssh import SshTable

BLOCKS: Mapping[Kind, type[BlockTable]] = MappingProxyType(
    {
        Kind.FILE: FileTable,
        Kind.SHELL: ShellTable,
        Kind.GIT_PUSH: GitPushTable,
        Kind.MAIL: MailTable,
        Kind.SSH: SshTable,
        Kind.BROWSER: BrowserTable,
        Kind.MCP: McpTable,
    }
)
"""By kind; the key in the file is the kind's value."""
