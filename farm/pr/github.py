"""GitHub's REST API, as far as the farm needs it.

The token is read once from the environment and stands only in this client's headers: no message, log or repr has it.
Every call has a deadline; what GitHub asks to wait for (secondary rate limits, 429, 5xx) is waited for within it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from farm.errors import InfraError, UsageError
from farm.pr.decision import branch
from farm.pr.events import Asked
from farm.pr.publishing import CHECK, Check, Comment, Pull, Write

if TYPE_CHECKING:
    import httpx

API = "https://api.github.com"
SECONDS, CALL = 120.0, 20.0
LAST = 30.0  # for a check's conclusion, whatever took the rest of the time
MAX_PAGES, MAX_ANSWER = 50, 20_000_000
_AGAIN = (429, 500, 502, 503, 504)


class _Unanswered(InfraError):
    """A call whose effect is not known."""


class GitHub:
    """A repository on GitHub.  `token` may be "", for what everybody can read."""

    def __init__(
        self,
        repository: str,
        token: str,
        api: str = API,
        *,
        seconds: float = SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        try:
            import httpx
        except ImportError:
            raise UsageError(
                "speaking to GitHub needs httpx, which is not installed; pip install 'kernel-farm[pr]'",
                id="pr-no-httpx",
            ) from None
        if not api.startswith("https://") and not re.match(r"http://(127\.0\.0\.1|localhost|\[::1\])(:|/|$)", api):
            raise UsageError(f"{api} is not https; a token would travel in the clear", id="pr-not-https")
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        tls = api.startswith("https://")  # of no use on loopback, where reading all certificates takes longest
        self._client = httpx.Client(base_url=api, headers=headers, timeout=CALL, follow_redirects=False, verify=tls)
        self._at, self._token, self._login = f"/repos/{repository}", token, ""
        self._repository, self._sleep, self._clock = repository, sleep, clock
        self._until = clock() + seconds

    def __repr__(self) -> str:
        return f"GitHub({self._repository!r})"

    def login(self) -> str:
        """Who the token belongs to.  An installation's token has no user: then the login of GitHub's own bot."""
        if not self._login:
            found = self._call("GET", "/user", missing=(401, 403, 404))
            self._login = str(found["login"]) if found else "github-actions[bot]"
        return self._login

    def pull(self, number: int) -> Mapping[str, Any]:
        """The pull request as it is now."""
        found = self._call("GET", f"{self._at}/pulls/{number}", missing=(404,))
        if not found:
            raise UsageError(f"{self._repository} has no pull request {number}", id="pr-missing")
        return dict(found)

    def asked(self, number: int, login: str) -> Asked:
        """What has to be known before a comment of `login` is a command."""
        pull = self.pull(number)
        head, base = pull["head"], pull["base"]
        return Asked(
            head=str(head["sha"]),
            base=str(base["sha"]),
            open=pull["state"] == "open",
            from_fork=(head.get("repo") or {}).get("full_name") != self._repository,
            body=str(pull.get("body") or ""),
            permission=self.permission(login),
            approved=self.branch(branch(number)),
        )

    def branch(self, name: str) -> str:
        """The commit of a branch, "" if there is none."""
        found = self._call("GET", f"{self._at}/git/ref/heads/{name}", missing=(404,)) or {}
        return str((found.get("object") or {}).get("sha") or "") if isinstance(found, dict) else ""

    def mirror(self, number: int, sha: str) -> None:
        """Let the branch pull-request/N be this commit."""
        name, body = branch(number), {"sha": sha, "force": True}
        if self._call("PATCH", f"{self._at}/git/refs/heads/{name}", body, missing=(404, 422)) is None:
            self._call("POST", f"{self._at}/git/refs", {"ref": f"refs/heads/{name}", "sha": sha})

    def start(self, workflow: str, number: int, decision: str) -> None:
        """Start a workflow on the branch pull-request/N with a decision as its input.  (What is pushed with the token
        of a workflow starts none.)"""
        at = f"{self._at}/actions/workflows/{workflow}/dispatches"
        body = {"ref": branch(number), "inputs": {"decision": decision}}
        if self._call("POST", at, body, missing=(404, 422)) is None:
            raise UsageError(
                f"GitHub cannot start {workflow} on {branch(number)}: it has to be on the default branch and in the "
                "head; merge the base branch",
                id="pr-start-workflow",
            )

    def review_comment(self, number: int) -> Mapping[str, Any]:
        """A review comment; {} if there is none of that number."""
        return dict(self._call("GET", f"{self._at}/pulls/comments/{number}", missing=(404,)) or {})

    def runs(self, workflow: str) -> list[Mapping[str, Any]]:
        """The newest runs of a workflow; none where the token may not read them."""
        at = f"{self._at}/actions/workflows/{workflow}/runs?per_page=50"
        found = self._call("GET", at, missing=(403, 404)) or {}
        return [run for run in found.get("workflow_runs", ()) if isinstance(run, dict)]

    def open_heads(self) -> list[str]:
        """The heads of all open pull requests."""
        return [str((p.get("head") or {}).get("sha")) for p in self._pages(f"{self._at}/pulls", "&state=open")]

    def permission(self, login: str) -> str:
        """admin, maintain, write, triage, read or none."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}(\[bot\])?", login):
            return "none"
        found = self._call("GET", f"{self._at}/collaborators/{login}/permission", missing=(404,))
        return str((found or {}).get("role_name") or (found or {}).get("permission") or "none")

    def state(self, number: int, commits: tuple[str, ...]) -> Pull:
        """The pull request, with the content of these commits."""
        pull = self.pull(number)
        head, base = str(pull["head"]["sha"]), str(pull["base"]["sha"])
        # commits of every fork can be asked for here, so that one exists says nothing
        compared = self._call("GET", f"{self._at}/compare/{base}...{head}?per_page=1", missing=(404, 422)) or {}
        merge_base = str((compared.get("merge_base_commit") or {}).get("sha") or "")
        trees = {sha: self._tree(sha) for sha in dict.fromkeys(commits)}
        return Pull(self._repository, number, head, pull["state"] == "open", (base, merge_base), trees)

    def group(self, number: int, head: str, base: str, commits: tuple[str, ...]) -> Pull:
        """A merge group of the merge queue, whose head and base the forge named."""
        compared = self._call("GET", f"{self._at}/compare/{base}...{head}?per_page=1", missing=(404, 422)) or {}
        merge_base = str((compared.get("merge_base_commit") or {}).get("sha") or "")
        trees = {sha: self._tree(sha) for sha in dict.fromkeys(commits)}
        return Pull(self._repository, number, head, True, (merge_base,) if merge_base == base else (), trees, True)

    def comments(self, number: int, login: str) -> list[Comment]:
        """The comments of `login`, oldest first."""
        return [
            Comment(int(c["id"]), login, str(c.get("body") or ""))
            for c in self._pages(f"{self._at}/issues/{number}/comments")
            if ((c.get("user") or {}).get("login")) == login
        ]

    def write(self, number: int, write: Write) -> None:
        """Make or change a comment.  One that was deleted meanwhile is made anew."""
        if write.id:
            at = f"{self._at}/issues/comments/{write.id}"
            if self._call("PATCH", at, {"body": write.body}, missing=(404,)) is not None:
                return
        for _ in range(3):
            try:
                self._call("POST", f"{self._at}/issues/{number}/comments", {"body": write.body})
                return
            except _Unanswered:  # made or not: only the list says
                if any(c.body == write.body for c in self.comments(number, self.login())):
                    return
        raise InfraError(f"GitHub does not take the comment on {number}; run the same command again", id="pr-forge")

    def conclude(self, check: Check, again: bool = True) -> None:
        """Write the farm's check on a commit: into the one that is in progress, else a new one.

        Not `again`: what is no result leaves a conclusion that is there already, and gives it to the check that is in
        progress beside it; else whoever makes a job die could replace a failure."""
        self._until = max(self._until, self._clock() + LAST)
        output = {"title": check.title, "summary": check.summary}
        ending = {"status": "completed", "conclusion": check.conclusion}
        body = {**(ending if check.conclusion else {"status": "in_progress"}), "output": output}
        at = f"{self._at}/check-runs"
        there = self._checks(check.head)
        known = [c for c in there if c.get("status") != "completed"]
        earlier = _concluded(there)
        if not again and earlier and not known:
            return
        if not again and earlier and check.conclusion:
            body["conclusion"] = earlier
            output["title"] = f"The earlier result stands: {check.title}"[:250]
        if known and self._call("PATCH", f"{at}/{int(known[0]['id'])}", body, missing=(403, 404)) is not None:
            return
        self._call("POST", at, {"name": CHECK, "head_sha": check.head, **body})

    def sweep(self, head: str, why: str, older: datetime | None = None) -> int:
        """Conclude the checks on a commit that are in progress, as one there was, else as neutral; how many.  `older`:
        only those that began before."""
        done, there = 0, self._checks(head)
        for check in there:
            begun = str(check.get("started_at") or "")
            if check.get("status") == "completed" or (older and begun and begun > older.strftime("%Y-%m-%dT%H:%M:%SZ")):
                continue
            ending = _concluded(there) or "neutral"
            body = {"status": "completed", "conclusion": ending, "output": {"title": why, "summary": why}}
            done += (
                self._call("PATCH", f"{self._at}/check-runs/{int(check['id'])}", body, missing=(403, 404)) is not None
            )
        return done

    def pending(self, head: str) -> bool:
        """Whether a check on a commit is in progress."""
        return any(c.get("status") != "completed" for c in self._checks(head))

    def _checks(self, head: str) -> list[dict[str, Any]]:
        """The farm's checks on a commit."""
        name = CHECK.replace(" ", "%20")
        found = self._call("GET", f"{self._at}/commits/{head}/check-runs?check_name={name}")
        return [c for c in (found or {}).get("check_runs", []) if isinstance(c, dict)]

    def _tree(self, sha: str) -> str:
        found = self._call("GET", f"{self._at}/git/commits/{sha}", missing=(404, 409, 422))
        return str(((found or {}).get("tree") or {}).get("sha") or "")

    def _pages(self, at: str, more: str = "") -> Iterator[Mapping[str, Any]]:
        for page in range(1, MAX_PAGES + 1):
            found = self._call("GET", f"{at}?per_page=100&page={page}{more}") or []
            yield from found
            if len(found) < 100:
                return

    def _call(self, method: str, at: str, body: Any = None, missing: tuple[int, ...] = ()) -> Any:
        """The answer, parsed; None for a status in `missing`.  InfraError if GitHub does not answer in time."""
        import httpx

        for attempt in range(20):
            left = self._until - self._clock()
            if left <= 0:
                break
            try:
                answer = self._client.request(method, at, json=body, timeout=min(CALL, left))
            except httpx.TransportError:
                if method == "POST":
                    raise _Unanswered(f"GitHub did not answer {method} {at}", id="pr-forge") from None
                self._sleep(min(pause({}, attempt), left))
                continue
            if answer.is_success:
                return _parsed(answer)
            if method == "POST" and answer.status_code >= 500:
                raise _Unanswered(f"GitHub refused {method} {at} (HTTP {answer.status_code})", id="pr-forge")
            wait = again(answer.status_code, answer.headers, attempt)
            if wait is None:
                if answer.status_code in missing:
                    return None
                raise self._refused(answer.status_code, method, at)
            if wait >= left:
                break
            self._sleep(wait)
        raise InfraError(f"GitHub did not answer {method} {at} in time; run the same command again", id="pr-forge")

    def _refused(self, status: int, method: str, at: str) -> Exception:
        if status == 401:
            return UsageError("GitHub does not accept the token; set GITHUB_TOKEN to a valid one", id="pr-token")
        if status in (403, 404):
            what = "the token may not" if self._token else "without a token nobody may"
            return UsageError(
                f"{what} {method} {at} (HTTP {status}); the workflow needs the permissions pull-requests: write and "
                "checks: write, and to start runs contents: write and actions: write",
                id="pr-permission",
            )
        return InfraError(f"GitHub refused {method} {at} (HTTP {status})", id="pr-forge")


def _concluded(there: Sequence[Mapping[str, Any]]) -> str:
    """The conclusion of the newest check that has one; "" if there is none."""
    known = [c for c in there if c.get("status", "completed") == "completed" and c.get("conclusion")]
    return str(max(known, key=lambda c: int(c["id"]))["conclusion"]) if known else ""


def again(status: int, headers: Mapping[str, str], attempt: int) -> float | None:
    """Seconds to wait before the same call is tried again; None if that is of no use."""
    limited = status == 403 and ("retry-after" in headers or headers.get("x-ratelimit-remaining") == "0")
    if status not in _AGAIN and not limited:
        return None
    return pause(headers, attempt)


def pause(headers: Mapping[str, str], attempt: int) -> float:
    """What GitHub asks for, else 1, 2, 4, ... seconds up to a minute."""
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() and len(value) < 8 else float(min(2**attempt, 60))


def _parsed(answer: httpx.Response) -> Any:
    if len(answer.content) > MAX_ANSWER:
        raise InfraError("GitHub's answer is larger than any that the farm asks for", id="pr-forge")
    if not answer.content:
        return {}
    try:
        return answer.json()
    except ValueError:
        raise InfraError("GitHub's answer is not JSON; is the address of its API right?", id="pr-forge") from None
