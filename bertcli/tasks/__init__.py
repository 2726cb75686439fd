"""What a BERT with a task head says of texts: one module a task, over a shared frame.

head = Head.open(find_model("dslim/bert-base-NER", files=MODEL_FILES), "BertForTokenClassification")
for window in TagTask(head).stream(Reader(Source(texts=("Angela lives in Berlin.",)))):
    for result in window:
        print(result.fields)

`head` opens the model (`pooled_head` one over pooled vectors) and streams texts through it,
`scores` makes scores of logits, `results` are the rows written; torch or OpenVINO runs the model,
and nothing here imports either. The tasks are `fill_mask`, `next_sentence`, `classify`, `rerank`,
`choose`, `tag` (tokens to `entities`) and `answer` (scores to `spans`). Imports `inference` and
what is below. Begin with `head`, then `classify`.
"""
