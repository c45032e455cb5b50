"""Shapes of messages as data: which keys and types of which library mean what.

A new library is a line here, not a branch in the reader. Shapes were read from objects of openai,
anthropic, google-genai, langchain-core and pydantic-ai, and from the documentation of Bedrock's
Converse and of the Vercel AI SDK.
"""

from __future__ import annotations

from collections.abc import Mapping

# --- entries and messages -------------------------------------------------------------------------
CONTAINERS = (
    "tool_messages",
    "messages",
    "conversations",
    "conversation",
    "choices",
    "candidates",
    "output",
    "generations",
    "contents",
    "input",
    "prompt",
)
"""Keys of many messages: a row of a data set, OpenAI's and Gemini's requests and responses,
LangChain's prompts and results."""
EXCHANGE = ("prompt", "completion")
"""Keys of the messages of a row of TRL and of a state of verifiers, which follow one another."""
WRAPPERS = ("message", "data", "kwargs", "content", "output")
"""Keys of one message: OpenAI's ``Choice``, LangChain's ``messages_to_dict`` and ``dumpd``,
Gemini's ``Candidate``, Bedrock's Converse."""
PROMPT_KEYS = ("prompt", "input", "contents")
"""Keys of a bare text that is a message: of Vercel's AI SDK, OpenAI's Responses API, Gemini."""
CONVERSATIONS = frozenset({"messages", "conversations", "conversation"})
"""Keys of a conversation, which hold messages and nothing else."""
REQUESTS = CONVERSATIONS | frozenset(PROMPT_KEYS)
"""Keys of the messages of a request, beside which the system's text may stand.

A response may repeat that text.
"""
SYSTEM_KEYS = ("system", "instructions", "system_instruction", "systemInstruction")
"""Keys of the system's text beside the messages of a request.

Of Anthropic and Bedrock, OpenAI's Responses, Gemini.
"""
SETTINGS_KEY = "config"
"""Key of Gemini's settings, which hold the system's text."""
FINISH_KEYS = frozenset(
    {"finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason"}
)
"""Keys of the reason for which a model stopped: of OpenAI, Gemini, Anthropic, Bedrock, Ollama."""
RESPONSE = ("object", "response")
"""Key and value by which a response of OpenAI's Responses API says what it is."""
INCOMPLETE_KEY = "incomplete_details"
"""Key of why such a response ended early; one without has its ``status`` alone."""
FINISH_HOLDERS = frozenset({"response_metadata", "generation_info"})
"""Keys of what holds such a key, of a message and of a generation of LangChain."""
EXTRAS = "additional_kwargs"
"""Key under which LangChain keeps what its own fields do not have: calls of older models, reasoning."""
ROLE_KEYS = ("role", "from")
AUTHOR_KEY = "author"
"""Key of what holds the role and the name of a message, in OpenAI's Harmony."""
CHANNEL_KEY = "channel"
RECIPIENT_KEY = "recipient"
"""Keys of a message of Harmony: to whom it is sent, a reader by default, else a tool."""
REASONING_CHANNEL = "analysis"
TOOL_CHANNELS = (REASONING_CHANNEL, "commentary")
"""Channels in which a model calls tools; those that are built in are called in that of reasoning."""
NO_TOOLS = (None, "all", "assistant")
"""Recipients of a message that is not a call."""
CONTENT_KEYS = ("content", "value", "text", "message", "blocks")
"""Keys of a message's content: OpenAI's and most others, ShareGPT's, completions, Cohere's, LlamaIndex's."""
PARTS_KEY = "parts"
"""Key of parts that name their role (pydantic-ai), or whose message does (GenAI, Gemini, Vercel)."""
INSTRUCTIONS_KEY = "instructions"
"""Key of the system's text beside the parts of pydantic-ai's ``ModelRequest``."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
CALL_KEYS = ("tool_calls", "invalid_tool_calls", "function_call")
MEDIA_KEYS = {
    "images": "image",
    "image": "image",
    "videos": "video",
    "audios": "audio",
    "audio": "audio",
}
"""Keys of media beside a message's content (Ollama, ms-swift, OpenAI's answers in audio) to their modality."""
ANSWER_CALL_KEYS = ("tool_call_id", "call_id", "tool_use_id")
TAU_KEY = "requestor"
"""Key of messages of tau2-bench, whose answers of tools have the id of their call as their own."""
ANSWERS_KEY = "tool_messages"
"""Key of the answers of several tools in one message of tau2-bench."""
TYPE_KEYS = ("type", "kind")
"""Keys of a message's type, whose text is not a fact of it."""

MESSAGE_KEYS = frozenset(
    (
        *ROLE_KEYS,
        *CONTENT_KEYS,
        PARTS_KEY,
        INSTRUCTIONS_KEY,
        *REASONING_KEYS,
        *CALL_KEYS,
        *MEDIA_KEYS,
        *ANSWER_CALL_KEYS,
        EXTRAS,
        "name",
        "refusal",
    )
)
"""Keys that mean something in a message."""

ROLES: Mapping[str, str] = {
    "human": "user", "gpt": "assistant", "ai": "assistant", "model": "assistant", "chatbot": "assistant",
    "CHATBOT": "assistant", "USER": "user", "SYSTEM": "system", "TOOL": "tool",
    "function": "tool", "observation": "tool", "function_call": "assistant", "tool_call": "assistant",
    "tool_response": "tool", "tool-response": "tool",
}  # fmt: skip
"""Names of roles to those of GenAI; any other name is the role itself."""
CALL_ROLES = frozenset({"function_call", "tool_call"})
"""Roles of LLaMA-Factory's ShareGPT and ms-swift whose content is JSON text of a tool call, or of several."""
TYPE_ROLES: Mapping[str, str] = {
    "human": "user", "HumanMessage": "user", "HumanMessageChunk": "user",
    "ai": "assistant", "AIMessage": "assistant", "AIMessageChunk": "assistant",
    "system": "system", "SystemMessage": "system", "SystemMessageChunk": "system",
    "tool": "tool", "ToolMessage": "tool", "ToolMessageChunk": "tool",
    "function": "tool", "FunctionMessage": "tool", "FunctionMessageChunk": "tool",
    "request": "user", "response": "assistant",
}  # fmt: skip
"""Type of a message without a role, of LangChain and pydantic-ai, to its role."""
PART_ROLES: Mapping[str, str] = {
    "system-prompt": "system", "user-prompt": "user", "tool-return": "tool", "retry-prompt": "tool",
}  # fmt: skip
"""Type of a part of pydantic-ai's ``ModelRequest`` to the role of a message of its own."""
CHAT_ROLES = frozenset({"system", "user", "assistant", "developer", "tool"})

# --- parts ----------------------------------------------------------------------------------------
KIND_KEYS = ("type", "part_kind", "kind", "block_type")
TEXT = "text"
REASONING = "reasoning"
CALL = "call"
ANSWER = "answer"
KINDS: Mapping[str, str] = {
    "text": TEXT, "input_text": TEXT, "output_text": TEXT, "summary_text": TEXT, "system-prompt": TEXT,
    "user-prompt": TEXT, "text-plain": TEXT,
    "reasoning": REASONING, "reasoning_text": REASONING, "thinking": REASONING, "redacted_thinking": REASONING,
    "tool_call": CALL, "tool_use": CALL, "function_call": CALL, "server_tool_use": CALL, "mcp_tool_use": CALL,
    "custom_tool_call": CALL, "mcp_call": CALL, "web_search_call": CALL, "file_search_call": CALL,
    "computer_call": CALL, "code_interpreter_call": CALL, "local_shell_call": CALL, "tool-call": CALL,
    "shell_call": CALL, "apply_patch_call": CALL, "tool_search_call": CALL, "builtin-tool-call": CALL,
    "invalid_tool_call": CALL,
    "tool_call_response": ANSWER, "tool_result": ANSWER, "function_call_output": ANSWER, "mcp_tool_result": ANSWER,
    "custom_tool_call_output": ANSWER, "computer_call_output": ANSWER, "local_shell_call_output": ANSWER,
    "shell_call_output": ANSWER, "apply_patch_call_output": ANSWER, "web_search_tool_result": ANSWER,
    "code_execution_tool_result": ANSWER, "tool-return": ANSWER,
    "builtin-tool-return": ANSWER, "retry-prompt": ANSWER, "tool-result": ANSWER,
}  # fmt: skip
"""Type of a part, or of an item that is a message of one part, to what it is."""
KEYED_PARTS: Mapping[str, str] = {
    "function_call": CALL, "functionCall": CALL, "toolUse": CALL, "executable_code": CALL, "executableCode": CALL,
    "function_response": ANSWER, "functionResponse": ANSWER, "toolResult": ANSWER, "code_execution_result": ANSWER,
    "codeExecutionResult": ANSWER, "reasoningContent": REASONING, "reasoningText": REASONING,
    "inline_data": "media", "inlineData": "media", "file_data": "media", "fileData": "media",
    "image": "image", "video": "video", "audio": "audio", "document": "document", "json": TEXT,
}  # fmt: skip
"""Key of a part without a type, of Gemini and Bedrock, to what its value is."""
KEYED_ANSWERS = tuple(key for key, meaning in KEYED_PARTS.items() if meaning == ANSWER)
ITEM_ROLES: Mapping[str, str] = {
    REASONING: "assistant",
    CALL: "assistant",
    ANSWER: "tool",
}
"""What an item is that is a message of one part, as in OpenAI's Responses API, to the role of that message."""
TEXT_KEYS = ("text", "content")
THOUGHT_KEYS = (
    "content",
    "thinking",
    "reasoning",
    "text",
    "summary",
    "reasoningText",
    "data",
)
CALL_ID_KEYS = (
    "call_id",
    "tool_call_id",
    "tool_use_id",
    "toolCallId",
    "toolUseId",
    "id",
)
CALL_NAME_KEYS = ("name", "tool_name", "toolName")
NESTED_CALL_KEYS = ("function", "custom")
ARGUMENT_KEYS = (
    "arguments",
    "input",
    "args",
    "parameters",
    "tool_kwargs",
    "action",
    "operation",
    "code",
    "queries",
)
ANSWER_KEYS = ("response", "result", "content", "output")

# --- media ----------------------------------------------------------------------------------------
MODALITIES = ("image", "audio", "video")
DOCUMENTS = frozenset(
    {"file", "input_file", "document", "document-url", "media", "binary"}
)
"""Types whose modality their MIME type says, ``document`` where it does not."""
SOURCE_KEY = "source"
TEXT_SOURCES = {"text": "data", "content": "content"}
"""Type of a source of Anthropic that is not a medium to the key of its text, or of its parts."""
SOURCE_KEYS = ("file", SOURCE_KEY, "url", "data", "bytes", "path")
"""Keys of a medium's content beside those named after its type and modality."""
MIME_KEYS = (
    "media_type",
    "mime_type",
    "mimeType",
    "mediaType",
    "image_mimetype",
    "video_mimetype",
    "document_mimetype",
)
DATA_KEYS = ("data", "bytes", "base64")
ENCODED_KEY = "block_type"
"""Key of the type of LlamaIndex's media, whose bytes are base64 already."""
BINARY_KEYS = (*DATA_KEYS, "binary_content", "content")
"""Keys of the data of pydantic-ai's type ``binary``; those of another type may be an address."""
URL_KEYS = ("url", "uri", "file_uri", "fileUri", "file_url", "file_data")
