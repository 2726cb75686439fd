"""Sound folders of the other families, of models of terms and of tokens, and of static tables."""

from pathlib import Path

import term_models
import tokenizers_made
import transformers
from family_models import ROWS
from model_reference import randomise
from static_folders import model2vec_folder, static_folder

from bertcli.families.registry import FAMILIES

# The tokenizer of tests/support/tokenizers_made.py that checkpoints of a family come with.
TOKENIZERS = {"xlm-roberta": "xlm_roberta", "deberta-v2": "deberta", "nomic_bert": "distilbert"}
TOKENIZERS |= {"gte": "xlm_roberta", "jina_embeddings_v3": "xlm_roberta", "gemma3_text": "gemma"}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 66,
    "type_vocab_size": 2,
}
TASKS = {
    "fill-mask": "MaskedLM",
    "classify": "SequenceClassification",
    "tag": "TokenClassification",
    "answer": "QuestionAnswering",
    "choose": "MultipleChoice",
}
OF_TERMS = ("splade", "splade-routed", "bge-m3", "colbert", "colbert-native", "colbert-pylate")
NAMES = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}


def make_families(root: Path) -> None:
    """Write a folder of each family, each with another head, and those of ``term_models``."""
    for number, row in enumerate(ROWS):
        kind = TOKENIZERS.get(row.model_type, row.model_type)
        folder = tokenizers_made.MADE[kind](root / f"family-{row.model_type}")
        vocabulary = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        endings = [*(f"For{head}" for head in TASKS.values()), "Model"]
        names = [row.prefix + endings[(number + at) % 6] for at in range(6)]
        name = next(name for name in names if name in row.classes)
        page = FAMILIES[row.model_type]
        settings = {page.key(key): size for key, size in SIZES.items()}
        settings[page.key("vocab_size")] = len(vocabulary)
        settings["pad_token_id"] = 1 if "roberta" in name.lower() else 0
        settings |= row.more
        settings |= NAMES if name.endswith("Classification") else {}
        config = transformers.AutoConfig.for_model(row.model_type, **settings)
        randomise(getattr(transformers, name)(config)).save_pretrained(folder)
    base = term_models.encoder(root / "encoder")
    masked = term_models.sparse(root / "splade")
    term_models.native(base, root / "colbert-native")
    term_models.pylate(base, root / "colbert-pylate")
    term_models.colbert(base, root / "colbert", metadata={"query_maxlen": 20, "doc_maxlen": 30})
    term_models.bge(base, root / "bge-m3")
    term_models.routed(masked, root / "splade-routed")
    static_folder(root / "static")
    model2vec_folder(root / "model2vec", config={"normalize": True, "max_length": 24})
