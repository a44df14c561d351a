# Sourced by the prepare_data.sh scripts: all stages of the data. They set `benchmark`, `rsipo_overrides` (KEY=VALUE) and the
# variables of their heads; further arguments are overrides too. Every stage is skipped or gone on with where RESUME=true.
out=${OUTPUT_DIR:?set it to the data folder}
resume=()
[[ ${RESUME:-false} != true ]] || resume=(--resume)

# Without a model: the embedded policy on generated data, annotated by templates.
model=() embedded=(--embedded) annotator=${ANNOTATOR:-offline}
if [[ -n ${MODEL_PATH:-} ]]; then
  model=("$MODEL_PATH") embedded=() annotator=${ANNOTATOR:-external}
fi

if [[ ! -f $out/sampled_tasks.jsonl.gz ]]; then
  rsipo sft sample "$benchmark" --out "$out" --count "${NUM_TASKS:-500}" --seed "${SEED:-0}" "${embedded[@]}" \
    "${rsipo_overrides[@]}" "$@"
fi
rsipo sft collect "$benchmark" "${model[@]}" --out "$out" --rollouts "${NUM_ROLLOUTS:-8}" --seed "${SEED:-0}" "${resume[@]}" \
  "${rsipo_overrides[@]}" "$@"
rsipo sft annotate "$benchmark" "${model[@]}" --out "$out" --annotator "$annotator" "${resume[@]}" "${rsipo_overrides[@]}" "$@"
rsipo sft build "$out" --seed "${SEED:-0}"
rsipo sft check "$out"
