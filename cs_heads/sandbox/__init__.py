"""A sandbox for generated code."""

from cs_heads.sandbox.run import Outcome as Outcome
from cs_heads.sandbox.run import Sandbox as Sandbox
from cs_heads.sandbox.run import SandboxError as SandboxError
