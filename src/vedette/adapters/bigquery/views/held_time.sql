-- How long actions were held, by agent and tool; what is held still is counted apart.
SELECT
  fleet,
  agent,
  tool,
  COUNT(*) AS holds,
  COUNTIF(held_us IS NULL) AS still_held,
  SUM(held_us) / 1000000 AS held_s,
  MAX(held_us) / 1000000 AS longest_s,
  APPROX_QUANTILES(held_us, 100)[OFFSET(50)] / 1000000 AS p50_s
FROM `${dataset}.holds`
GROUP BY fleet, agent, tool
