-- Which rule denied what, by day and policy revision.
SELECT
  fleet,
  DATE(recorded_at) AS day,
  rule,
  policy_rev,
  agent,
  tool,
  COUNT(*) AS denials,
  MAX(recorded_at) AS last_at
FROM `${dataset}.entries`
WHERE kind = 'action.decided' AND outcome = 'deny'
GROUP BY fleet, day, rule, policy_rev, agent, tool
