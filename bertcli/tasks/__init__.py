"""What a BERT with a task head says of texts: one module a task, over a shared frame.

head = Head.open(find_model("dslim/bert-base-NER", files=MODEL_FILES), "BertForTokenClassification")
for window in TagTask(head).stream(Reader(Source(texts=("Angela lives in Berlin.",)))):
    for result in window:
        print(result.fields)

`head` opens the model, with a head over tokens or over pooled vectors, and runs a task over texts;
`results` are the rows written; torch or OpenVINO runs the model, and nothing here imports
either. The tasks are `classify` (also to sort texts for a query, whether a sentence follows, and
which), `fill_mask`, `tag` and `answer`; `needed_models` says where to get a model for each.
`rerank_answers` sorts the results of a search. Begin with `head`, then `classify`.
"""
