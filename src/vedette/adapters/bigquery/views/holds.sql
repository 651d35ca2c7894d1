-- Every action that was held: since when, and when it was answered or went on.
WITH asked AS (
  SELECT fleet, agent, tool, action, MIN(seq) AS seq, MIN(recorded_at) AS asked_at
  FROM `${dataset}.entries`
  WHERE kind = 'action.decided' AND outcome = 'hold'
  GROUP BY fleet, agent, tool, action
),
ended AS (
  SELECT fleet, action, seq, recorded_at
  FROM `${dataset}.entries`
  WHERE kind IN ('hold.approved', 'hold.denied', 'hold.expired', 'action.refused')
    OR (kind = 'action.decided' AND outcome != 'hold')
    OR effect IS NOT NULL
)
SELECT
  a.fleet,
  a.agent,
  a.tool,
  a.action,
  a.seq,
  a.asked_at,
  MIN(e.recorded_at) AS answered_at,
  TIMESTAMP_DIFF(MIN(e.recorded_at), a.asked_at, MICROSECOND) AS held_us
FROM asked AS a
LEFT JOIN ended AS e ON e.fleet = a.fleet AND e.action = a.action AND e.seq > a.seq
GROUP BY a.fleet, a.agent, a.tool, a.action, a.seq, a.asked_at
