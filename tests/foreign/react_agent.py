"""A ReAct agent of LangChain (Yao et al., arXiv 2210.03629), whose model is the run's policy.

LangChain writes the prompts, reads thoughts, actions and their inputs out of the answers, and keeps what was done: this file only
names the tools and says what they mean on a desktop.
"""

from __future__ import annotations

import json
from typing import Any

from langchain_classic.agents import create_react_agent
from langchain_core.agents import AgentAction
from langchain_core.exceptions import OutputParserException
from langchain_core.prompts import PromptTemplate
from langchain_core.tools import Tool
from langchain_openai import ChatOpenAI

TOOLS = {"click": "click", "set_cell": "calc.set_cell"}
"""Name of a tool -> the desktop's action."""
PROMPT = PromptTemplate.from_template("{input}\nTools: {tool_names}{tools}\n{agent_scratchpad}")
MAX_ROWS = 20


class Agent:
    """See docs/how-to/agents.md."""

    def __init__(self, base_url: str, api_key: str, model: str) -> None:
        llm = ChatOpenAI(base_url=base_url, api_key=api_key, model=model, max_retries=0)
        tools = [Tool(name=name, func=str, description="") for name in TOOLS]
        self._agent = create_react_agent(llm, tools, PROMPT, tools_renderer=lambda _: "")
        self._question = ""
        self._done: list[tuple[AgentAction, str]] = []

    def predict(self, instruction: str, observation: dict[str, Any]) -> str:
        """One round of thought and action."""
        screen = "\n".join(observation["rows"][:MAX_ROWS])
        self._question = self._question or f"{instruction}\n{screen}"
        if self._done:
            self._done[-1] = (self._done[-1][0], observation["error"] or screen)
        try:
            chosen = self._agent.invoke({"input": self._question, "intermediate_steps": self._done})
        except OutputParserException as error:
            return str(error.llm_output)
        if not isinstance(chosen, AgentAction):
            return "done()"
        self._done.append((chosen, ""))
        values = [json.dumps(int(value) if value.isdigit() else value) for value in str(chosen.tool_input).split(" = ")]
        return f"{TOOLS.get(chosen.tool, chosen.tool)}({', '.join(values)})"


def demonstrate(messages: list[dict[str, Any]], action: str) -> str:
    """What the model should answer in LangChain's format, so that the agent does ``action``."""
    name, _, values = action.removesuffix(")").partition("(")
    if name == "done":
        return "It is done.\nFinal Answer: done"
    (tool,) = [tool for tool, meant in TOOLS.items() if meant == name]
    told = " = ".join(str(value) for value in json.loads(f"[{values}]"))
    return f"I use {tool}.\nAction: {tool}\nAction Input: {told}"
