"""Which models the endpoint answers with, as it said last; several feeds need it and one asks."""

from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.model_answers import ModelsResponse


class Served:
    """``models`` is None before the first answer, and stays where the endpoint goes away."""

    def __init__(self, client: AsyncPredictionClient) -> None:
        self._client = client
        self.models: ModelsResponse | None = None

    async def refresh(self) -> ModelsResponse:
        """Ask the endpoint. Raises as the client does."""
        self.models = await self._client.models()
        return self.models
