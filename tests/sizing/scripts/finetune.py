"""The Hugging Face Trainer, with LoRA by the first argument."""

import sys

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

NAME = "HuggingFaceTB/SmolLM2-135M"
tokenizer = AutoTokenizer.from_pretrained(NAME)
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(NAME)
if sys.argv[1] == "lora":
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    model.print_trainable_parameters()
data = load_dataset("wikitext", "wikitext-2-raw-v1", split="train")
data = data.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=128), batched=True)
data = data.remove_columns(["text"])
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=16,
    num_train_epochs=2,
    bf16=True,
    logging_steps=1,
    report_to=[],
    save_steps=1,
    dataloader_num_workers=2,
)
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=collator)
trainer.train()
trainer.save_model("out")
