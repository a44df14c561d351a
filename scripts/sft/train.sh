# Sourced by the train_sft.sh scripts, which set `benchmark`. Further arguments are overrides.
resume=()
[[ ${RESUME:-false} != true ]] || resume=(--resume)
model=()
[[ -z ${MODEL_PATH:-} ]] || model=("$MODEL_PATH")
exec rsipo sft train "$benchmark" "${model[@]}" --data "${DATA_DIR:?set it to the folder that prepare_data.sh wrote}" \
  --export "${EXPORT_MODEL_DIR:?set it to the folder for the model}" "${resume[@]}" "$@"
