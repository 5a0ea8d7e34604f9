use throttle_limits::shared::Shared;

async fn call(bucket: &str) -> Result<u64, Box<dyn std::error::Error>> {
    // If there is no bucket of this name, it is made.
    let quota = Shared::with_limits(bucket, &["10/h,burst=10".parse()?])?;
    quota.acquire(1).await?;
    let granted = quota.acquire_to_settle(5).await?; // an estimate
    granted.settle(2).await?; // what it cost
    Ok(quota.available().await?)
}
