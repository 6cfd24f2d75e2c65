"""A sandbox for generated code, and the attempts to get out of it."""

from cs_heads.sandbox.check import self_check as self_check
from cs_heads.sandbox.run import Outcome as Outcome
from cs_heads.sandbox.run import Sandbox as Sandbox
from cs_heads.sandbox.run import SandboxError as SandboxError
