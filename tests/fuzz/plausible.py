"""Settings that may stand in the files of a model folder: most can be worked with, some cannot.

What is of another type is refused at the first look. These get as far as the numbers.
"""

from typing import Any

SWITCH: list[Any] = [True, False]
TOKENS: list[Any] = ["[UNK]", "[MASK]", "good", "[NEW]", "", "  ", "\u4e00", None]
SIZES: list[Any] = [1, 2, 3, 8, 24, 346, 347, 348, 512, 10**6, 10**9]
HEADS = ("MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification")
HEADS += ("QuestionAnswering", "MultipleChoice", "NextSentencePrediction")
ADDED = {"content": "[NEW]", "lstrip": True, "rstrip": True, "normalized": True, "special": False}

SCALED = {"rope_theta": 100.0, "factor": 2.0}
FAMILIES: dict[str, list[Any]] = {  # what the config.json of other families says as well
    "rope_parameters": [None, {}, {"rope_type": "yarn", **SCALED}, {"full_attention": SCALED},
                        {"rope_type": "linear", "factor": 0.0}, {"rope_type": "dynamic", **SCALED}],
    "rope_scaling": [None, {"type": "ntk", "factor": 8.0}, {"rope_type": "linear", "factor": 0.5}],
    "rope_theta": [0.0, 1.0, 1e30],
    "rotary_emb_fraction": [0.0, 0.5, 1.0, 2.0],
    "local_attention": [-1, 0, 1, 7, 10**9],
    "layer_types": [[], ["full_attention"], ["sliding_attention"] * 2, ["a", "b"]],
    "global_attn_every_n_layers": [0, 1, 3],
    "position_buckets": [-1, 0, 1, 4, 10**9],
    "max_relative_positions": [-1, 0, 1, 10**9],
    "relative_attention_num_buckets": [0, 1, 2, 31, 10**9],
    "pos_att_type": [[], ["c2p"], "p2c|c2p", ["p2p"], "a"],
    "relative_attention": SWITCH,
    "share_att_key": SWITCH,
    "position_biased_input": SWITCH,
    "embedding_size": [1, 8, 16, 10**9],
    "num_hidden_groups": [0, 1, 2, 3],
    "inner_group_num": [0, 1, 2],
    "classifier_pooling": ["cls", "mean", "max"],
    "norm_bias": SWITCH,
}  # fmt: skip
CONFIG: dict[str, list[Any]] = {
    "position_embedding_type": ["sinusoidal", "relative_key", "relative_key_query", "rotary"],
    "hidden_act": ["relu", "gelu_new", "silu", "linear", "mish", "tanh", "prelu", "relu2"],
    "is_decoder": SWITCH,
    "add_cross_attention": SWITCH,
    "tie_word_embeddings": SWITCH,
    "chunk_size_feed_forward": [0, 1, 3, 10**9],
    "layer_norm_eps": [1e-30, 1e-3, 1e20],
    "pruned_heads": [{}, {"0": [0]}, {"0": [0, 1]}, {"1": [1], "0": [1]}, {"0": [0, 0]}],
    "extra_embeddings": [{}, {"emotion": 5}, {"a": 10**9}],
    "num_labels": [1, 2, 3, 10**6],
    "problem_type": ["regression", "multi_label_classification", "single_label_classification"],
    "id2label": [{}, {"0": "a"}, {"0": "a", "1": "a", "2": "a"}, {"5": "a"}, {"0": "B-\x1b[0m"}],
    "label2id": [{}, {"a": 0}, {"a": 7}],
    "pad_token_id": [None, 0, 3, 346, 347, 10**9],
    "architectures": [[], ["BertModel"], ["Bert"], *([f"BertFor{head}"] for head in HEADS)],
    "torch_dtype": ["float16", "bfloat16", "float64", "int8", "complex64"],
    "classifier_dropout": [None, 0, 0.5, 1],
    "hidden_dropout_prob": [0, 1],
    "model_type": ["bert", "roberta", "distilbert", "modernbert", "deberta-v2", "t5"],
    **FAMILIES,
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "type_vocab_size"), SIZES),
    "hidden_size": [8, 16, 24, 32, 48, 64, 10**9],
    "intermediate_size": [8, 16, 24, 32, 48, 64, 10**9],
    "num_hidden_layers": [0, 1, 2, 3, 1000, 1001],
    "num_attention_heads": [1, 2, 4, 16, 32, 10**9],
}
TOKENIZER_SETTINGS: dict[str, list[Any]] = {
    "do_lower_case": SWITCH,
    "strip_accents": [True, False, None],
    "tokenize_chinese_chars": SWITCH,
    "clean_up_tokenization_spaces": [True, False, None],
    "model_max_length": [*SIZES, 10**30, 1e30, 64.0],
    "padding_side": ["left", "right"],
    "truncation_side": ["left", "right"],
    "tokenizer_class": [
        "BertTokenizer",
        "BertTokenizerFast",
        "BertJapaneseTokenizer",
        "Bert",
        "RobertaTokenizer",
        "XLMRobertaTokenizer",
        "DebertaV2Tokenizer",
        "AlbertTokenizer",
        "MPNetTokenizer",
        "PreTrainedTokenizerFast",
    ],
    "additional_special_tokens": [["[NEW]"], ["good", "film"], [ADDED], ["", " "], ["\u0301"]],
    "extra_special_tokens": [["[NEW]"], {"image_token": "[NEW]"}, {}],
    "added_tokens_decoder": [{}, {"347": ADDED}, {"5": ADDED}, {"999999": ADDED}],
    "never_split": [["[NEW]"], []],
    "do_basic_tokenize": SWITCH,
    **dict.fromkeys(("cls_token", "sep_token", "pad_token", "mask_token", "unk_token"), TOKENS),
}


_WORDS = {f"w{at}": at for at in range(300)} | {"[UNK]": 300, "[CLS]": 301, "[SEP]": 302}
_SPECIAL = {
    name: {"id": name, "ids": [at], "tokens": [name]}
    for name, at in (("[CLS]", 301), ("[SEP]", 10**6))
}
TOKENIZER: dict[str, list[Any]] = {
    "post_processor": [
        None,
        {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        {"type": "BertProcessing", "sep": ["[SEP]", 10**9], "cls": ["no", 2]},
        {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
         "trim_offsets": True, "add_prefix_space": False},
        {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 7}}],
         "pair": [{"Sequence": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "special_tokens": {}},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
         "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 1}}],
         "special_tokens": _SPECIAL},
    ],
    "model": [
        {"type": "WordLevel", "vocab": _WORDS, "unk_token": "[UNK]"},
        {"type": "WordPiece", "vocab": _WORDS, "unk_token": "[UNK]", "max_input_chars_per_word": 1,
         "continuing_subword_prefix": ""},
        {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]", "max_input_chars_per_word": 100,
         "continuing_subword_prefix": "##"},
        {"type": "BPE", "vocab": _WORDS | {"a": 303, "b": 304, "ab": 305}, "merges": ["a b"],
         "unk_token": None},
        {"type": "Unigram", "vocab": [["[UNK]", 0.0], ["a", -1.0]], "unk_id": 0},
    ],
    "added_tokens": [
        [],
        [{"id": 5, **ADDED}],
        [{"id": 347, **ADDED, "content": " "}],
        [{"id": 10**6, **ADDED, "content": "film", "single_word": True}],
    ],
    "truncation": [
        None,
        *({"direction": side, "max_length": length, "strategy": "LongestFirst", "stride": stride}
          for side, length, stride in (("Left", 8, 0), ("Right", 1, 0), ("Right", 8, 7),
                                       ("Right", 0, 0), ("Left", 8, 10**6))),
    ],
    "padding": [
        None,
        *({"strategy": strategy, "direction": "Left", "pad_to_multiple_of": multiple,
           "pad_id": index, "pad_type_id": 5, "pad_token": "[PAD]"}
          for strategy, multiple, index in (("BatchLongest", None, 0), ({"Fixed": 9}, 7, 10**9),
                                            ({"Fixed": 10**6}, None, 0))),
    ],
}  # fmt: skip
POOLING: dict[str, list[Any]] = {
    **{
        f"pooling_mode_{name}": SWITCH
        for name in (
            *("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"),
            *("weightedmean_tokens", "lasttoken"),
        )
    },
    "pooling_mode": ["mean", "cls", "max", "lasttoken", ["mean", "cls"]],
    "word_embedding_dimension": [16, 32, 384],
    "include_prompt": SWITCH,
}
PLAUSIBLE: dict[str, dict[str, list[Any]]] = {
    "config.json": CONFIG,
    "tokenizer_config.json": TOKENIZER_SETTINGS,
    "special_tokens_map.json": {
        name: TOKENIZER_SETTINGS[name]
        for name in ("cls_token", "pad_token", "mask_token", "additional_special_tokens")
    },
    "tokenizer.json": TOKENIZER,
    "1_Pooling/config.json": POOLING,
    "sentence_bert_config.json": {"max_seq_length": [*SIZES, None], "do_lower_case": SWITCH},
    "config_sentence_transformers.json": {
        "prompts": [{}, {"query": ""}, {"query": "word " * 400}, {"query": "[SEP]", "": "a"}],
        "default_prompt_name": [None, "query", "passage", "nowhere", ""],
        "truncate_dim": [None, 1, 16, 32, 33, 10**9],
        "similarity_fn_name": ["cosine", "dot", "euclidean", "manhattan", None],
    },
    "added_tokens.json": {"[NEW]": [0, 346, 347, 348, 10**6], "film": [347, 349], "": [347]},
    "instances.json": {
        "max_length": [1, 12, 16, 24, 10**6], "max_predictions": [1, 2, 20, 10**6],
        "vocab_size": [1, 347, 30522], "pad_token_id": [0, 346, 10**6], "shards": [[]],
    },
    "training_state.json": {
        "step": [0, 1, 2], "updates": [0, 1, 10**15], "log_bytes": [0, 7, 10**15],
        "window": [{}, {"steps": 0}, {"seconds": 1e308, "steps": 1}], "scaler": [{}, {"scale": 0}],
    },
}  # fmt: skip
