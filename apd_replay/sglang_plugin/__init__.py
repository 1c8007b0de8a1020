"""What stock SGLang lacks for sessions that stay on a decode worker, brought as an SGLang plugin (docs/plugin.md).

Entry point `sglang.srt.plugins`; asleep unless the environment variable APD_SGLANG_PLUGIN is set (settings.py).
"""
