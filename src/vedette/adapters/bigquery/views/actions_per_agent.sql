-- What each agent did with each tool, by day: decisions, and what came of them.
SELECT
  fleet,
  DATE(recorded_at) AS day,
  agent,
  tool,
  COUNTIF(kind = 'action.decided') AS decided,
  COUNTIF(kind = 'action.decided' AND outcome = 'permit') AS permitted,
  COUNTIF(kind = 'action.decided' AND outcome = 'hold') AS held,
  COUNTIF(kind = 'action.decided' AND outcome = 'deny') AS denied,
  COUNTIF(effect = 'done') AS done,
  COUNTIF(effect = 'failed') AS failed,
  COUNTIF(effect = 'unknown') AS became_unknown
FROM `${dataset}.entries`
WHERE kind = 'action.decided' OR effect IS NOT NULL
GROUP BY fleet, day, agent, tool
