-- What each agent's thinking cost for each effect that was done. A turn costs what it settled; one
-- that never settled (its process died) costs all that was reserved for it.
WITH turns AS (
  SELECT
    fleet, run, turn,
    MAX(IF(kind = 'budget.settled', seq, 0)) AS settled,
    MAX(IF(kind = 'budget.reserved', seq, 0)) AS reserved
  FROM `${dataset}.entries`
  WHERE kind IN ('budget.settled', 'budget.reserved')
  GROUP BY fleet, run, turn
),
spent AS (
  SELECT fleet, agent, spend
  FROM `${dataset}.entries`
  WHERE kind = 'budget.settled'
  UNION ALL
  SELECT e.fleet, e.agent, e.spend
  FROM turns AS t
  JOIN `${dataset}.entries` AS e ON e.fleet = t.fleet AND e.seq = t.reserved
  WHERE t.reserved > t.settled
),
cost AS (
  SELECT
    fleet, agent,
    SUM(IFNULL(CAST(JSON_VALUE(spend, '$.model_calls') AS INT64), 0)) AS model_calls,
    SUM(IFNULL(CAST(JSON_VALUE(spend, '$.tokens') AS INT64), 0)) AS tokens,
    SUM(IFNULL(CAST(JSON_VALUE(spend, '$.money_micros') AS INT64), 0)) AS money_micros
  FROM spent
  GROUP BY fleet, agent
),
useful AS (
  SELECT fleet, agent, COUNTIF(kind = 'effect.done') AS useful_actions
  FROM `${dataset}.entries`
  WHERE agent IS NOT NULL
  GROUP BY fleet, agent
)
SELECT
  u.fleet,
  u.agent,
  u.useful_actions,
  IFNULL(c.model_calls, 0) AS model_calls,
  IFNULL(c.tokens, 0) AS tokens,
  IFNULL(c.money_micros, 0) AS money_micros,
  SAFE_DIVIDE(IFNULL(c.tokens, 0), u.useful_actions) AS tokens_per_useful_action,
  SAFE_DIVIDE(IFNULL(c.money_micros, 0), u.useful_actions) AS money_micros_per_useful_action
FROM useful AS u
LEFT JOIN cost AS c ON c.fleet = u.fleet AND c.agent = u.agent
