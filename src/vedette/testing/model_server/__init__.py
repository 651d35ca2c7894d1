"""A real HTTP server that speaks the wires of model providers, as strictly as they do.

Gemini, Anthropic Messages, OpenAI Responses and Chat Completions, Ollama. What it answers is a
script of the test; what a client must hand back unchanged it remembers, and refuses anything else
in the provider's own words. docs/design/model-server.md says what is checked, and on what ground.
"""

from __future__ import annotations

from vedette.testing.model_server.fault import CutAnswer as CutAnswer
from vedette.testing.model_server.fault import ErrorAnswer as ErrorAnswer
from vedette.testing.model_server.fault import Fault as Fault
from vedette.testing.model_server.fault import RawAnswer as RawAnswer
from vedette.testing.model_server.fault import ResetConnection as ResetConnection
from vedette.testing.model_server.fault import SlowAnswer as SlowAnswer
from vedette.testing.model_server.fault import StallAnswer as StallAnswer
from vedette.testing.model_server.script import mail_agent as mail_agent
from vedette.testing.model_server.server import Exchange as Exchange
from vedette.testing.model_server.server import ModelServer as ModelServer
from vedette.testing.model_server.turn import FunctionCall as FunctionCall
from vedette.testing.model_server.turn import FunctionResult as FunctionResult
from vedette.testing.model_server.turn import Message as Message
from vedette.testing.model_server.turn import RedactedThinking as RedactedThinking
from vedette.testing.model_server.turn import Request as Request
from vedette.testing.model_server.turn import Script as Script
from vedette.testing.model_server.turn import Thinking as Thinking
from vedette.testing.model_server.turn import Turn as Turn
from vedette.testing.model_server.turn import Usage as Usage
from vedette.testing.model_server.wire import Model as Model
