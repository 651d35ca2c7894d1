# A small fleet for the tests: what it may do, and a question that it is permitted.
#
# Tests judge the rules, not the data in force: data change in operation, at times in a hurry, and a
# test that read them would refuse the change. So a test names every data file its rules read
# (`with data.grants as …`), and leaves out denies that were added, where it needs to be permitted
# (`with data.vedette.denies.deny as set()`).
package vedette.testdata

grants := {"clerk": {
	"mode": "act",
	"owner": "desk@harbour.example",
	"tools": {
		"letter.file": {"verb": "move", "resource": "shelf", "impact": "low"},
		"letter.draft": {"verb": "draft", "resource": "shelf", "impact": "low"},
		"letter.send": {"verb": "send", "resource": "post", "impact": "high"},
	},
	"memory": ["desk/letters"],
}}

limits := {
	"hops": 8,
	"actions": {"default": {"minute": 600, "hour": 6000, "day": 50000}, "agents": {}},
	"confidence_milli": {"default": 800, "agents": {}},
	"complete": true,
}

known := {"accepts": ["trusted", "registered"], "otherwise": "deny"}

trusted := {"accepts": ["trusted"], "otherwise": "deny", "receiver": false}

anyone := {"accepts": ["trusted", "registered", "derived", "untrusted"], "otherwise": "deny"}

sinks := {
	"tools": {
		"letter.file": {"/letter": trusted, "/shelf": known},
		"letter.draft": {"/letter": trusted, "/to": anyone},
		"letter.send": {"/letter": trusted, "/to": known},
	},
	"complete": true,
}

links := {"tools": {"letter.draft": {"/text": known}}, "complete": true}

denies := {"agents": [], "tools": [], "complete": true}

policy := {"grants": grants, "limits": limits, "sinks": sinks, "links": links, "denies": denies}

# Ten seconds into a minute that begins an hour.
question := {
	"schema": "vedette.question/2",
	"now": 1795257610000000,
	"subject": {
		"id": "spiffe://harbour/agent/clerk",
		"agent": "clerk",
		"release": "r1",
		"owner": "desk@harbour.example",
		"requested_mode": "act",
	},
	"action": {
		"tool": "letter.file",
		"verb": "move",
		"digest": "d1",
		"declared": "d2",
		"settles": "idempotent",
		"high_impact": false,
		"args": {"letter": "l1", "shelf": "Invoices"},
		"origins": {"/letter": "trusted", "/shelf": "trusted"},
		"sources": {},
		"sinks": ["/letter", "/shelf"],
		"links": [],
		"readers": {},
	},
	"resource": {"type": "shelf", "id": "l1"},
	"context": {
		"event": {"type": "letter.received", "source": "desk", "hops": 0, "lineage": [], "vouched": []},
		"confidence": 950,
		"memories": [],
		"counters": {"minute": 0, "hour": 0, "day": 0, "run": 0},
		"budget": {"hour": 2000, "day": 20000, "run": 8},
		"approvals": [],
		"stopped": false,
		"trigger": "letters",
		"turn": 1,
	},
}
