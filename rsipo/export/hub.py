"""Uploading an exported folder to the Hugging Face hub; whatever goes wrong, the folder stays."""

from __future__ import annotations

from pathlib import Path

from rsipo.problems import UserError


def check_repository(name: str) -> None:
    """Whether ``name`` can be a repository, before any work is done.

    Raises:
        UserError: it has not the form OWNER/NAME.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"HF_REPO '{name}' is no repository: {str(error).splitlines()[0]}") from None
    if "/" not in name:
        raise UserError(f"HF_REPO '{name}' names no owner; write OWNER/{name}")


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """Create the repository if needed and upload every file in one commit; returns the commit's address.

    Raises:
        UserError: offline, no token, refused, or cut off; with the command that uploads the folder later.
    """
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise _not_uploaded(folder, repository, "HF_HUB_OFFLINE is set; unset it")
    if not get_token():
        raise _not_uploaded(folder, repository, "there is no token; run `hf auth login` or set HF_TOKEN")
    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(folder_path=folder, repo_id=repository, commit_message=f"Upload {folder.name}")
    except Exception as error:  # of the hub, of the connection, of the transfer libraries: no common base
        raise _not_uploaded(folder, repository, _reason(error, constants.ENDPOINT)) from error
    return str(commit.commit_url)


def _reason(error: Exception, endpoint: str) -> str:
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    text = (str(error).splitlines() or [""])[0] or type(error).__name__
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code if error.response is not None else None
        hint = "; is the token one with write access to it?" if status in (401, 403, 404) else ""
        return f"{endpoint} refused with status {status}{hint}"
    if isinstance(error, httpx.HTTPError | OSError):
        return f"no connection to {endpoint} ({text})"
    return f"the upload failed ({text})"


def _not_uploaded(folder: Path, repository: str, reason: str) -> UserError:
    return UserError(
        f"not uploaded to {repository}: {reason}. The folder is complete: {folder}; "
        f"`hf upload {repository} {folder}` uploads it later"
    )
