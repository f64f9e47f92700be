"""Start-up logs of SGLang and vLLM, read only: what each line says was taken, by which rank, and how exactly."""
