-- The ledger as it stands: without what a restore, or a new ledger of the same fleet, replaced.
SELECT l.*
FROM `${dataset}.ledger` AS l
WHERE NOT EXISTS (
  SELECT 1
  FROM `${dataset}.ledger` AS r
  WHERE r.fleet = l.fleet
    AND (r.kind = 'store.restored' OR r.seq = 1)
    AND r.history > l.history
    AND r.seq <= l.seq
)
