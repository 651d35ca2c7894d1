"""Error codes: what each means, for `vedette explain --error` and docs/errors.md.

A code is a promise: scripts match on it, so one that was published keeps its meaning.
"""

from __future__ import annotations

from msgspec import Struct


class ErrorExplanation(Struct, frozen=True):
    """What `vedette explain --error` tells of a code: meaning, usual causes, what to do."""

    meaning: str
    cause: str
    mend: str


_SIGN_IN = "Sign in again, or give the agent a fresh key: `vedette identity issue --rotate AGENT`."

EXPLANATIONS: dict[str, ErrorExplanation] = {
    # --- how a verb was called ---
    "usage": ErrorExplanation(
        "The command line does not say what to do in a form that the program takes.",
        "A verb or an option is misspelt, an argument is missing or of another type.",
        "Compare with `vedette VERB --help`; `vedette --help` lists all verbs.",
    ),
    "no-fleet-here": ErrorExplanation(
        "No vedette.toml was found, so there is no fleet to speak of.",
        "The command was given outside the fleet's folder, or --config names another place.",
        "Change into the folder, give --config PATH, or write a fleet: `vedette init DIR`.",
    ),
    "not-found": ErrorExplanation(
        "The record or the fleet holds nothing of that name.",
        "An id was cut or mistyped, or it belongs to another fleet's state folder.",
        "List what there is: `vedette runs`, `vedette hold`, `vedette agent show`.",
    ),
    "bad-command": ErrorExplanation(
        "What was asked for cannot be done as asked; nothing was changed.",
        "The thing is not in the state that the command needs, or an argument does not fit it.",
        "Read what the message says of the present state, then ask again.",
    ),
    "loosening-unconfirmed": ErrorExplanation(
        "The order would loosen the live policy, and nobody said that this is meant.",
        "A publication, a rollback or a mode was ordered without a terminal and without --yes.",
        "Read what it loosens, as the message lists it; if it is meant, repeat it with --yes.",
    ),
    "already-done": ErrorExplanation(
        "The same command was carried out before; it is not done a second time.",
        "A script repeated a --command-id, or an answer was given twice.",
        "Nothing: what was wanted is done. `vedette explain ID` shows by whom.",
    ),
    "key-reused": ErrorExplanation(
        "An agent's client gave a call the key of another call; nothing was done.",
        "A key was not made anew for what is to be done besides, or arguments changed in a retry.",
        "Give each call a key of its own, and each retry the same key and the same arguments.",
    ),
    "no-mcp": ErrorExplanation(
        "The fleet serves agents over HTTP, and not over MCP.",
        "The SDK of MCP is an extra, and is not installed beside vedette.",
        "Install vedette[mcp], and start the fleet again.",
    ),
    "too-large": ErrorExplanation(
        "An agent's client sent more than one call may hold; nothing was done.",
        "The arguments hold content where a reference would do.",
        "Send a reference, or raise [limits] max_event_bytes.",
    ),
    "key-erased": ErrorExplanation(
        "A client's key names a call whose content was erased; nothing was done.",
        "Whether the two calls are the same cannot be told any more.",
        "Give the call a key of its own.",
    ),
    "wakes-nobody": ErrorExplanation(
        "An agent's client made a call that wakes no run of its agent; nothing was done.",
        "The agent's trigger for its client's calls was changed, or its folder is another.",
        "Write `on: vedette.call` without filters in its agent.yaml, and make the call again.",
    ),
    "too-slow": ErrorExplanation(
        "An agent's client did not send its request in time; nothing was done.",
        "The body came slower than ten seconds, or not at all.",
        "Send the whole body at once.",
    ),
    "too-many": ErrorExplanation(
        "An agent has more requests open than one may.",
        "Many of its clients wait for outcomes at a time.",
        "Wait for those that are open; ask for outcomes with a shorter wait_s.",
    ),
    "state-not-kept": ErrorExplanation(
        "A judge has observed what was to be erased, and its state is not kept without it yet.",
        "The event was judged while the order to erase it was carried out.",
        "Order it again. `vedette erase` does so by itself.",
    ),
    "not-shown": ErrorExplanation(
        "An order was not for what its person was shown, or that cannot be shown any more.",
        "It named no digest, or what it is about changed or was erased since it was shown.",
        "Look again: `vedette hold HOLD` ends with the command to approve it; "
        "`vedette erase` shows what would go now.",
    ),
    "forbidden": ErrorExplanation(
        "Whoever asked may not give this command.",
        "Their roles do not include it, or an agent asked for what only people may do.",
        "Ask somebody who has the role; docs/guides/people.md lists who may do what.",
    ),
    "fleet-process": ErrorExplanation(
        "A process that the fleet itself started asked something of it; it takes no command so.",
        "A tool, a judge or a notice of the fleet started a program that gives commands to it.",
        "Give it from a shell that the fleet did not start.",
    ),
    # --- models ---
    "model-rate": ErrorExplanation(
        "A model's provider was asked more often than it allows.",
        "calls_per_minute or calls_in_flight of its entry of [models] is above the quota there.",
        "Nothing is lost: its runs wait as long as it asks. Set the limits of the entry lower.",
    ),
    "model-unavailable": ErrorExplanation(
        "A model's provider does not answer now (500, 503, 529).",
        "It is overloaded or has an outage.",
        "Nothing: its runs go on by themselves; `fallback =` names who is asked meanwhile.",
    ),
    "model-timeout": ErrorExplanation(
        "A model did not answer in the time that its entry gives it; the call may be charged.",
        "The provider is slow, or the answer is long.",
        "Set `timeout =` of its entry of [models] longer, or let it write less.",
    ),
    "model-connection": ErrorExplanation(
        "A model's provider cannot be reached.",
        "base_url is wrong, or the network between is down.",
        "See that base_url is right and reachable: `vedette check --live`.",
    ),
    "model-quota": ErrorExplanation(
        "A model's quota of the day is used up; its runs wait and try each 15 minutes.",
        "The provider counts by its own day.",
        "Wait for the next day, or raise the quota there.",
    ),
    "model-billing": ErrorExplanation(
        "A model's provider does not answer because of billing; its runs wait.",
        "The credit is used up, or a spend limit is reached.",
        "Pay, or raise the limit there; it is tried again each 5 minutes.",
    ),
    "model-key": ErrorExplanation(
        "A model's provider does not take the key; its runs wait.",
        "The key is wrong, revoked, or of another provider.",
        "Put another where key_file or key_secret says; for key_env restart the fleet.",
    ),
    "model-forbidden": ErrorExplanation(
        "The key may not be used for this model; its runs wait.",
        "The account lacks the model, the API is not enabled, or the region is refused.",
        "Have it allowed there; it is tried again each 5 minutes.",
    ),
    "model-missing": ErrorExplanation(
        "The provider knows no model of this name; its runs wait.",
        "`model =` of the entry of [models] is misspelt, or the model was retired.",
        "Correct the entry and restart the fleet.",
    ),
    "model-request": ErrorExplanation(
        "The provider refused a request for good; its run is a dead letter.",
        "The prompt is too long, or the model does not take a setting of agent.py. If five in a "
        "row are refused, it may be the account: then the others wait.",
        "Mend the agent, or the account there, and redrive: `vedette dead RUN --redrive`.",
    ),
    # --- mail servers ---
    "no-such-folder": ErrorExplanation(
        "The mailbox has no folder of that name, or it may not be opened.",
        "The name is spelt otherwise on the server, or the folder was never made.",
        "Make it in a mail program, mend the name, or set create_folders = true of the target.",
    ),
    "mail-unanswered": ErrorExplanation(
        "The connection was lost when a mail was handed over: nobody knows whether it was sent.",
        "The relay or the network broke down between the mail and its receipt.",
        "Find out whether it arrived; then move it from Sending to Sent, or remove it there.",
    ),
    # --- the fleet as files ---
    "bad-fleet": ErrorExplanation(
        "A file of the fleet is wrong, so no fleet is made of it.",
        "An agent, a memory bank or the settings contradict themselves or one another.",
        "Mend the line that is named; `vedette check` lists everything at once.",
    ),
    "wrong-type": ErrorExplanation(
        "A value in a file has another type than its key takes.",
        "Quotes around a number, a bare word where a list belongs, or an empty value.",
        "Write the value as the message says; `vedette completion` prints what each key takes.",
    ),
    "missing-key": ErrorExplanation(
        "A file lacks a key that cannot be left out.",
        "It was deleted, or stands under the wrong parent because of its indentation.",
        "Add it; the message says what it is for.",
    ),
    "no-such-key": ErrorExplanation(
        "A file has a key that means nothing there.",
        "It is misspelt, or stands under the wrong parent. It is refused, not passed over,"
        " because a limit that is misspelt would be no limit.",
        "Correct or remove it; the message names the nearest known key.",
    ),
    "bad-value": ErrorExplanation(
        "A value has the right type and cannot be taken all the same.",
        "It is out of bounds, empty, or none of the words that are known there.",
        "Write one of the values that the message names.",
    ),
    "not-yaml": ErrorExplanation(
        "A file is not YAML that we take.",
        "Tabs, a lost colon or quote, a key given twice; anchors and tags are not taken.",
        "Mend the line; indent with spaces.",
    ),
    "duplicate-name": ErrorExplanation(
        "Two things of the fleet have one name, so neither can be meant.",
        "A folder was copied and the name inside it left as it was.",
        "Give each its own name; an agent's is that of its folder. `vedette agent new NAME"
        " --like X` copies and renames in one go.",
    ),
    "tool-changed": ErrorExplanation(
        "A server describes a tool otherwise than when it was declared; the tool is refused.",
        "The server was updated, or somebody means harm: its texts, arguments or hints differ.",
        "Look at the difference with `vedette tool add --again`, and take it or leave it.",
    ),
    "not-boxed": ErrorExplanation(
        "The settings require that all agents' code runs in a box, or an agent was imported, which"
        " always does; and some of it would not.",
        "The kernel has no Landlock or an old one, or [isolation] switches workers or the box off.",
        "See what is open: `vedette status`. Mend that, or write require = false in [isolation]"
        " and trust the agents' code.",
    ),
    "policy-folder-differs": ErrorExplanation(
        "The policy folder says something else than the live policy.",
        "A revision was rolled back, published from elsewhere, or the folder's was not taken.",
        "See `vedette policy diff`; publish the folder, or bring it to what is live.",
    ),
    "sink-reached": ErrorExplanation(
        "Text that an agent reads can decide who, where or which an action is for.",
        "The policy accepts derived or untrusted values for that argument, or a source of rows is"
        " trusted for columns that anybody fills. A warning: where a person looks at what comes of"
        " it, it may be meant so.",
        "Name what the argument may be in charter or registry and accept trusted and registered;"
        " list in `vouched` of the source the columns whose values no stranger chooses.",
    ),
    "no-grant": ErrorExplanation(
        "The policy grants this agent nothing, so it may do nothing.",
        "agent.yaml only requests; what an agent may do stands in the policy's grants.",
        "Add the agent to policies/grants/data.yaml; `vedette agent show NAME` says what it"
        " asks for.",
    ),
    # --- policy ---
    "no-policy": ErrorExplanation(
        "There is no policy, and without one everything is denied: the fleet does not start.",
        "The policies folder was moved, or [content] policies names another place.",
        "Bring the folder back; `vedette init DIR` writes one to compare with.",
    ),
    "bad-policy": ErrorExplanation(
        "A policy folder cannot become the live policy; the last good revision stays in force.",
        "A file does not parse, one of its tests fails, a proof is missing, or it uses what the"
        " engines answer differently.",
        "Mend the line that is named and try it: `vedette check policy`.",
    ),
    "engine-failed": ErrorExplanation(
        "The policy engine could not answer. What it was asked is denied.",
        "A rule failed, took too long, or gave two answers.",
        "`vedette explain ID` names the decision; try the policy with `vedette check policy`.",
    ),
    "outrun": ErrorExplanation(
        "Somebody else published a policy revision in the same moment.",
        "Two people, or a person and a changed folder, published at once.",
        "Look at `vedette policy history` and give the order again.",
    ),
    # --- events and agents ---
    "bad-event": ErrorExplanation(
        "What was delivered is no event that can be accepted; it is recorded as refused.",
        "A CloudEvents attribute is missing, it is too large, or its numbers are not safe.",
        "Mend the sender; `vedette explain ID` shows what came.",
    ),
    "bad-proposal": ErrorExplanation(
        "An agent proposed something that is no action of its; it was not done.",
        "Its judge names a tool that agent.yaml does not declare, or a reference that leads"
        " nowhere.",
        "Correct judge.py or agent.yaml, then `vedette check cases` and `vedette try`.",
    ),
    "repeated-proposal": ErrorExplanation(
        "A task's turn proposed what is done for the same item already; it was not done again.",
        "The reasoner did not take up the outcome of an earlier turn; it is told it once more.",
        "Nothing: close the item. `vedette work show RUN` tells what is done.",
    ),
    "release-changed": ErrorExplanation(
        "An agent's files are not those of the release that is to run; its code was not loaded.",
        "Somebody edited a snapshot in the state folder, or a worker's host has another folder.",
        "Start the fleet again, which writes snapshots anew; `vedette agent release NAME` makes"
        " the folder's present content the release.",
    ),
    "model-failed": ErrorExplanation(
        "A model gave no answer, or broke off in it; its run tries again, up to five times.",
        "Its provider is in trouble or refuses, it was late, cut short, or answered nothing.",
        "Read what it says; then `vedette dead --redrive` for what was given up meanwhile.",
    ),
    "bad-model-answer": ErrorExplanation(
        "A model's answer was not taken; it was charged, and its run tries again up to five times.",
        "It is malformed, bigger than 1 MiB, has too many calls, or was counted impossibly.",
        "Mend the instruction or the model's settings; then `vedette dead --redrive`.",
    ),
    "model-not-asked": ErrorExplanation(
        "A model was not asked, since the request may not be made; it cost nothing.",
        "It is longer than input_tokens_per_call, or would offer tools that are not declared.",
        "Raise that bound in agent.yaml, or have less come with the event; then redrive the run.",
    ),
    "not-recorded": ErrorExplanation(
        "A model agent was to be tried out of the record, and nothing is recorded of the event.",
        "The agent took no turn on it (a file, one that waits, another's event), or did nothing.",
        "Ask its model, which costs: `vedette try AGENT EVENT --live`.",
    ),
    "stale-recording": ErrorExplanation(
        "An event that was to be tried out of the record differs from the one on record.",
        "Its file was edited, or another event has its source and id; the model answered that one.",
        "Try the recorded event by its id, or ask the model: `vedette try AGENT EVENT --live`.",
    ),
    "bad-confidence": ErrorExplanation(
        "A judgement or a proposal does not say how sure it is; nothing of it was decided.",
        "The confidence is missing, no number, or not a probability from 0 to 1.",
        "Correct judge.py, then `vedette try` and, for a judgement, `vedette dead --redrive`.",
    ),
    "bad-notes": ErrorExplanation(
        "What a judgement leaves for its run's next turn cannot be kept; it was not decided.",
        "The notes are no JSON, hold a number beyond 2**53 - 1, or more than 64 KiB.",
        "Correct judge.py, then `vedette dead --redrive`.",
    ),
    "turn-limit": ErrorExplanation(
        "A run wanted more turns than its agent may take; what it did in those before stands.",
        "Its judge or model went on for longer than `max_turns` of agent.yaml (1 unless given), or "
        "the judge of a cascade, which has one turn, returned a judgement that is not final.",
        "Raise `max_turns`, or have the agent come to an end; then `vedette dead --redrive`.",
    ),
    "worker-lost": ErrorExplanation(
        "The process in which an agent's code ran ended; the work is tried again.",
        "It took more time or memory than `limits:` of agent.yaml allow, or it crashed.",
        "`vedette dead` shows what was given up; raise the limits or mend the code.",
    ),
    "superseded": ErrorExplanation(
        "Somebody else moved the run on meanwhile; what was prepared is thrown away.",
        "A person answered, a policy changed, or another worker took the run.",
        "Nothing: it is looked at afresh.",
    ),
    "fenced": ErrorExplanation(
        "The policy or a stop changed before this was durable; it is decided again.",
        "That is what the fence is for.",
        "Nothing.",
    ),
    "over-budget": ErrorExplanation(
        "There is no room left in a budget; the work waits and is not lost.",
        "An hour's or a day's limit of the agent or the fleet is taken.",
        "See `vedette budget`; `vedette budget AGENT --raise 2h` lets it go on.",
    ),
    # --- store and machine ---
    "store-busy": ErrorExplanation(
        "Another run owns this fleet's state; two would do the same work twice.",
        "`vedette run` is at work already, here or in another terminal.",
        "Use the verbs beside it, or stop it first; its process id is in the message.",
    ),
    "bad-store": ErrorExplanation(
        "The store cannot be read by this program.",
        "It was written by another version or another fleet, or it is damaged.",
        "`vedette verify` says what stands; `vedette restore` puts a backup in place.",
    ),
    "older-store": ErrorExplanation(
        "An older version of vedette wrote this store; this one does not change it by itself.",
        "The program was replaced by a newer version, and nobody has upgraded the store yet.",
        "Stop the fleet, then `vedette upgrade --reason TEXT`; docs/guides/operate.md tells what it"
        " does. Or use the version that wrote it: the store is whole.",
    ),
    "damaged-segment": ErrorExplanation(
        "A row of the store that holds entries cannot be unpacked.",
        "The file or the table was edited, or the disk gave back something else than it was given.",
        "`vedette verify` says which entries are behind it; `vedette restore` puts a backup in its"
        " place.",
    ),
    "newer-store": ErrorExplanation(
        "A newer version of vedette wrote this state, and this one cannot read it.",
        "The program was put back to an older version after a newer one had started once.",
        "Use the newer version. To go back for good: stop it, remove `store.db-wal`,"
        " `store.db-shm`, `memory.db-wal`, `memory.db-shm` and `view.db*` of the state folder, then"
        " copy what lies in `before/` over the files of the same names; what came since is lost.",
    ),
    "unsafe-state": ErrorExplanation(
        "The state folder, or a file in it, may be somebody else's; nothing was written.",
        "There is a link in it, it belongs to another user, or its file system keeps no modes.",
        "Look at who put it there, remove it or chown the folder; then start again.",
    ),
    "state-moved": ErrorExplanation(
        "The state folder or a file in it was moved, deleted or replaced under a running fleet.",
        "A clean-up, a restore by hand or a new mount took its place; the fleet stopped itself.",
        "Put it back, start again, and see `vedette verify`.",
    ),
    "too-few-descriptors": ErrorExplanation(
        "The process may open too few files to serve and keep a reserve.",
        "The limit (RLIMIT_NOFILE) is very low, or much is open already.",
        "Raise it: `ulimit -n 1024`, or LimitNOFILE= of the unit.",
    ),
    "wrong-host": ErrorExplanation(
        "The server was asked by a name that is not its own (HTTP 421).",
        "A proxy or a DNS name stands before it; or a web page tries to reach it (DNS rebinding).",
        "Ask by its address, or add the name to [serve] hosts.",
    ),
    "store-failed": ErrorExplanation(
        "A commit could not be made durable. Nothing of it was answered; nothing is lost.",
        "The disk is full, failing or gone, or the database cannot be reached.",
        "Mend that and start again: what was delivered comes again.",
    ),
    "port-taken": ErrorExplanation(
        "Another program listens on the address that the fleet is to serve.",
        "Another fleet, or an old run that has not ended.",
        "Stop it, or set [serve] http to another port in vedette.toml (port 0: any free one).",
    ),
    "no-space": ErrorExplanation(
        "The disk is full.",
        "The state folder grows with the record; something else may have filled the disk.",
        "Make room, then start again: nothing accepted is lost. `vedette ledger archive` moves"
        " old entries away.",
    ),
    "no-permission": ErrorExplanation(
        "The operating system refuses access to a file or address.",
        "The folder belongs to another user, is read-only, or the port is below 1024.",
        "Run as the owner, correct the permissions, or set VEDETTE_STATE to another folder.",
    ),
    "wrong-python": ErrorExplanation(
        "This Python is too old for the program.",
        "The shell finds an older interpreter first.",
        "Use Python 3.11 or newer: `PYTHON=/path/to/python3.12 make setup`.",
    ),
    "disk-failed": ErrorExplanation(
        "The disk, or what it lies behind, could not read or write.",
        "A device is dying, a cable or a network disk went away; the kernel's log says more.",
        "See that the disk is well, then do the same again: nothing accepted is lost. A fleet that"
        " runs goes on by itself once its store can be written.",
    ),
    "system": ErrorExplanation(
        "The operating system refused something; the message is its own.",
        "A file is not there or not what it should be, or a connection broke.",
        "Look at the path that is named.",
    ),
    "unavailable": ErrorExplanation(
        "A part that this needs does not answer now; nothing was changed.",
        "The fleet is starting or ending, or a server it needs is down.",
        "Try again; `vedette status` and `vedette check --live` say what is there.",
    ),
    "temporary": ErrorExplanation(
        "It did not work now and may work later; the engine tries again by itself.",
        "A target or a server did not answer in time.",
        "`vedette status` shows targets that are left alone and until when.",
    ),
    "unsendable": ErrorExplanation(
        "A notice is larger than the way it was to go by takes. It is dropped; the others go on.",
        "The receiver answered that it is too large (413, or the relay's SIZE).",
        "Look at the hold itself: `vedette hold`. Let the receiver take larger bodies.",
    ),
    "permanent": ErrorExplanation(
        "It cannot succeed however often it is repeated.",
        "What was asked is not possible at the target as it is.",
        "`vedette explain ID` shows what the target said.",
    ),
    # --- tokens ---
    "no-token": ErrorExplanation("No token was sent.", "The caller has none configured.", _SIGN_IN),
    "bad-signature": ErrorExplanation(
        "The token's signature does not hold.",
        "It was changed, or signed by another key.",
        _SIGN_IN,
    ),
    "bad-algorithm": ErrorExplanation(
        "The token names an algorithm that is not taken.",
        "Only the algorithms of the issuer's own keys are; `none` never is.",
        _SIGN_IN,
    ),
    "expired": ErrorExplanation("The token's time is over.", "Tokens live for minutes.", _SIGN_IN),
    "not-yet": ErrorExplanation(
        "The token is not valid yet.", "The clocks of issuer and gateway differ.", "Set the clocks."
    ),
    "too-long": ErrorExplanation(
        "The token lives longer than is allowed.",
        "An agent's token may live five minutes.",
        _SIGN_IN,
    ),
    "missing-claim": ErrorExplanation(
        "The token lacks a claim it must have.", "The issuer leaves it out.", _SIGN_IN
    ),
    "wrong-audience": ErrorExplanation(
        "The token was made for somebody else.",
        "Its audience is another fleet or service.",
        _SIGN_IN,
    ),
    "wrong-issuer": ErrorExplanation(
        "The token comes from an issuer that is not trusted here.",
        "[people] issuer names another one.",
        "Correct vedette.toml, or sign in at the right provider.",
    ),
    "unknown-key": ErrorExplanation(
        "The token is signed by a key that nobody here knows.",
        "The key was dropped after a rotation, or belongs to another fleet.",
        _SIGN_IN,
    ),
    "revoked": ErrorExplanation(
        "The token, or its agent, was revoked.", "A person did so.", "`vedette identity show`."
    ),
    "wrong-subject": ErrorExplanation(
        "The token is another agent's.", "An agent may speak for itself alone.", _SIGN_IN
    ),
}
