use anyhow::Result;
pub(crate) fn draw() -> Result<()> {
    Ok(())
}
